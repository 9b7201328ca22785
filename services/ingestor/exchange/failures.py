"""What a failed call to an exchange means: whether to ask again, and whether to leave the exchange alone first. Pure.

ccxt.OperationFailed, 5xx, a bad answer  ask again, up to ``attempts`` times, with backoff and jitter
429, 418, a rate-limit code              the same, and nobody asks the venue before Retry-After (or the ban) is over
403, 404, 451                            ``refused_attempts`` tries
a code the table of dialects knows       what the table says
any other ccxt error                     no second try
the same impossible candle 7 times       no further try
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import ccxt.async_support as ccxt

from services.common.model.times import SECOND_NS
from services.ingestor.exchange.dialects.table import Dialect, Remedy
from services.ingestor.exchange.validation import MS_NS, BadAnswer

_EQUAL_FAULTS = 7
"""Three show a lasting fault only where faults are rare: of an exchange that spoils a fifth of its answers, one page in
125 meets three in a row, and one in 78,000 seven."""
_BAN_UNTIL = re.compile(r"banned until (\d{13})")
_THROTTLED_UNTIL = re.compile(r"EService: ?Throttled: ?(\d{10})\b")
_STATUS = re.compile(r"^\S+ (?:\S+ \S+ )?(\d{3}) ")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?")
_TOO_MANY = (429, 418)
_LONGEST_PAUSE_SECONDS = 1e9
"""Thirty years, as good as for ever; more would not fit the budget's 64 bits of nanoseconds."""


class ExchangeFailure(Exception):
    """The exchange refuses, or stays bad after all tries; the message says which question and how it ended."""


class ImpossibleCandle(ExchangeFailure):
    """The exchange keeps answering a candle that can't be one.

    Attributes:
        open_ns: Its open time.
    """

    def __init__(self, message: str, open_ns: int) -> None:
        super().__init__(message)
        self.open_ns = open_ns


class Failures:
    """What went wrong with one question so far."""

    def __init__(self, venue: str, what: str, dialect: Dialect, *, refused_attempts: int) -> None:
        self._venue = venue
        self._dialect = dialect
        self._what = what
        self._refused_attempts = refused_attempts
        self._refused = 0
        self._impossible: Counter[str] = Counter()

    def worth_another(self, error: BaseException) -> bool:
        """Take in one more failure; whether to ask again if there are tries left."""
        if isinstance(error, BadAnswer):
            if error.open_ns is None:
                return True
            self._impossible[str(error)] += 1
            return self._impossible[str(error)] < _EQUAL_FAULTS
        if status_of(error) in (403, 404, 451):
            self._refused += 1
            return self._refused < self._refused_attempts
        return may_heal(error, self._dialect)

    def tries_left(self, tries: int, attempts: int) -> bool:
        """Whether that many tries are fewer than ``attempts``; those with the same impossible candle do not count."""
        return tries - max(self._impossible.values(), default=0) < attempts

    def final(self, error: Exception, tries: int) -> ExchangeFailure:
        """What to raise after the last try."""
        text = f"{self._venue} gave no sound answer to {self._what} in {tries} tries: {brief(error)}"
        if isinstance(error, BadAnswer) and error.open_ns is not None:
            if self._impossible[str(error)] >= _EQUAL_FAULTS:
                return ImpossibleCandle(f"{self._venue} keeps answering {error}", error.open_ns)
        elif isinstance(error, ccxt.BaseError) and not may_heal(error, self._dialect):
            text = f"{self._venue} refuses {self._what}: {brief(error)}"
        return ExchangeFailure(text)


def may_heal(error: BaseException, dialect: Dialect) -> bool:
    """Whether a ccxt error says that the same question may be answered later."""
    # ccxt reports a body that broke off as a plain ExchangeError; its cause tells.
    if isinstance(error, ccxt.OperationFailed) or isinstance(error.__cause__, aiohttp.ClientError):
        return True
    return dialect.remedy(str(error)) is not None


def is_slow_down(error: BaseException, dialect: Dialect) -> bool:
    """Whether the exchange says, in its own code, that it is asked too often."""
    if isinstance(error, (ccxt.DDoSProtection, ccxt.RateLimitExceeded)):
        return True
    return isinstance(error, ccxt.BaseError) and dialect.remedy(str(error)) is Remedy.SLOW_DOWN


def as_bad_answer(error: Exception, dialect: Dialect, *, status: int, answer: Any) -> BadAnswer | None:
    """The bad answer behind an error ccxt takes for a refusal: what a broken server says is no word of an exchange.

    Args:
        status: The HTTP status, 0 if there was none.
        answer: The decoded answer; None if it was no JSON.
    """
    if not isinstance(error, ccxt.BaseError) or may_heal(error, dialect):
        return None
    if status >= 500:
        return BadAnswer(f"HTTP status {status}: {brief(error)}", kind="status")
    uncoded = dialect.always_coded and answer is not None and dialect.code(answer) is None
    if uncoded and type(error) is ccxt.ExchangeError:
        return BadAnswer(f"the answer has no code: {brief(error)}", kind="shape")
    return None


def kind_of(error: BaseException) -> str:
    """A failure in a word, for metrics."""
    return error.kind if isinstance(error, BadAnswer) else type(error).__name__


def status_of(error: BaseException) -> int | None:
    """The HTTP status ccxt wrote into an error's text, if it did."""
    found = _STATUS.match(str(error))
    return int(found.group(1)) if found else None


def announced_pause(
    status: int, headers: Mapping[str, str], body: str, *, default: float, wall_ns: int
) -> float | None:
    """Seconds for which an HTTP answer asks to be left alone; None if it does not.

    The end of a ban in its text, else its Retry-After header (seconds or a date), else ``default`` if it says "too many
    requests".
    """
    pause = _announced_pause(status, headers, body, default=default, wall_ns=wall_ns)
    return None if pause is None else min(pause, _LONGEST_PAUSE_SECONDS)


def _announced_pause(
    status: int, headers: Mapping[str, str], body: str, *, default: float, wall_ns: int
) -> float | None:
    throttled = _THROTTLED_UNTIL.search(body)
    if throttled:  # Kraken says so with status 200
        return max(0.0, int(throttled.group(1)) - wall_ns / SECOND_NS)
    if status not in (403, *_TOO_MANY) and status < 500:
        return None
    until = _BAN_UNTIL.search(body)
    if until:
        return max(0.0, (int(until.group(1)) * MS_NS - wall_ns) / SECOND_NS)
    value = next((v.strip() for k, v in headers.items() if k.lower() == "retry-after"), "")
    if _SECONDS.fullmatch(value):
        return float(value)
    with suppress(ValueError):
        moment = parsedate_to_datetime(value)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)  # one of HTTP's forms names no zone
        seconds = moment.timestamp() - wall_ns / SECOND_NS
        if seconds > 0:
            return seconds
    return default if status in _TOO_MANY else None


def brief(error: BaseException) -> str:
    """One line of an error: its kind and the start of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
