"""Meaning of a failed call to an exchange: whether to repeat the query, and whether to pause the exchange first. Pure.

failure                                   reaction
ccxt.OperationFailed, 5xx, a bad answer   repeat up to ``attempts`` times, with backoff and jitter
429, 418, a rate-limit code               the same, and no process calls the venue before Retry-After or the ban ends
403, 404, 451                             up to ``refused_attempts`` attempts
a code that heals (`ErrorFacts.healing`)  its remedy
any other ccxt error                      no second attempt
the same impossible candle 7 times        no more attempts
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import ccxt.async_support as ccxt

from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.answers import MS_NS, BadAnswer
from dexorder_ingestor.exchange.dialect import ErrorFacts, Remedy

_EQUAL_FAULTS = 7
"""Three equal answers show a lasting fault only where faults are rare. An exchange that spoils a fifth of its answers
gives three in a row to one page in 125, and seven to one in 78,000."""
_BAN_UNTIL = re.compile(r"banned until (\d{13})")
"""Milliseconds; several exchanges send such a text."""
_STATUS = re.compile(r"^\S+ (?:\S+ \S+ )?(\d{3}) ")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?")
_TOO_MANY = (429, 418)
_REFUSALS = (403, 404, 451)
_LONGEST_PAUSE_SECONDS = 1e9
"""Thirty years; a longer pause would not fit the 64 bits of nanoseconds of the rate limiter."""
PARSER_ERRORS = (TypeError, KeyError, IndexError, ValueError, AttributeError)


class ExchangeFailure(Exception):
    """The exchange refuses a query or gives no valid answer in all attempts. The message names the query."""


class ImpossibleCandle(ExchangeFailure):
    """The exchange keeps answering with candles that are impossible, those with these open times."""

    def __init__(self, message: str, opens: Iterable[int]) -> None:
        super().__init__(message)
        self.opens = tuple(opens)


class Failures:
    """Failures of one query so far."""

    def __init__(self, venue: str, query: str, facts: ErrorFacts, *, refused_attempts: int) -> None:
        self._venue = venue
        self._facts = facts
        self._query = query
        self._refused_attempts = refused_attempts
        self._refused = 0
        self._impossible: Counter[str] = Counter()

    def is_retriable(self, error: BaseException) -> bool:
        """Record a failure; return whether another attempt is worth making, if there is one left."""
        if isinstance(error, BadAnswer):
            if not error.opens:
                return True
            self._impossible[str(error)] += 1
            return self._impossible[str(error)] < _EQUAL_FAULTS
        if status_of(error) in _REFUSALS:
            self._refused += 1
            return self._refused < self._refused_attempts
        return is_transient(error, self._facts)

    def has_attempts_left(self, made: int, attempts: int) -> bool:
        """Return whether fewer than ``attempts`` were made; attempts with the same impossible candle do not count."""
        return made - max(self._impossible.values(), default=0) < attempts

    def final(self, error: Exception, attempts: int) -> ExchangeFailure:
        """Return the error to raise after the last attempt."""
        text = f"{self._venue} gave no valid answer to {self._query} in {attempts} attempts: {brief(error)}"
        if isinstance(error, BadAnswer) and error.opens:
            if self._impossible[str(error)] >= _EQUAL_FAULTS:
                return ImpossibleCandle(f"{self._venue} keeps answering {error}", error.opens)
        elif isinstance(error, ccxt.BaseError) and not is_transient(error, self._facts):
            text = f"{self._venue} refuses {self._query}: {brief(error)}"
        return ExchangeFailure(text)


def is_transient(error: BaseException, facts: ErrorFacts) -> bool:
    """Return whether a ccxt error says that the same query may be answered later."""
    # ccxt reports a truncated body as a plain ExchangeError; its cause tells them apart.
    if isinstance(error, ccxt.OperationFailed) or isinstance(error.__cause__, aiohttp.ClientError):
        return True
    return facts.remedy(str(error)) is not None


def is_slow_down(error: BaseException, facts: ErrorFacts) -> bool:
    """Return whether the exchange says by its own code that it is called too often."""
    if isinstance(error, (ccxt.DDoSProtection, ccxt.RateLimitExceeded)):
        return True
    return isinstance(error, ccxt.BaseError) and facts.remedy(str(error)) is Remedy.SLOW_DOWN


def as_bad_answer(error: Exception, facts: ErrorFacts, *, status: int, answer: Any) -> BadAnswer | None:
    """Return the bad answer that caused an error of ccxt's parser, or a refusal by a broken server.

    Args:
        status: The HTTP status, or 0 if there was none.
        answer: The decoded answer, or None if it was not JSON.
    """
    if isinstance(error, PARSER_ERRORS):
        text = f"ccxt can't read the answer: {type(error).__name__}: {str(error)[:120]}"
        return BadAnswer(text, kind="unreadable")
    if not isinstance(error, ccxt.BaseError) or is_transient(error, facts):
        return None
    if status >= 500:
        return BadAnswer(f"HTTP status {status}: {brief(error)}", kind="status")
    uncoded = facts.always_coded and answer is not None and facts.code(answer) is None
    if uncoded and type(error) is ccxt.ExchangeError:
        return BadAnswer(f"the answer has no code: {brief(error)}", kind="shape")
    return None


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure in one word, for metrics."""
    return error.kind if isinstance(error, BadAnswer) else type(error).__name__


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in the text of a ccxt error, if it has one."""
    found = _STATUS.match(str(error))
    return int(found.group(1)) if found else None


def announced_pause(
    status: int, headers: Mapping[str, str], body: str, facts: ErrorFacts, *, default: float, wall_ns: int
) -> float | None:
    """Return the seconds for which an HTTP answer asks the client to pause; None if it does not.

    The first of: the end of the ban in its text, its Retry-After header (seconds or a date), and ``default`` if its
    status is "too many requests".
    """
    pause: float | None
    if facts.throttled_until and (throttled := facts.throttled_until.search(body)):
        pause = max(0.0, int(throttled[1]) - wall_ns / SECOND_NS)
    elif status not in (403, *_TOO_MANY) and status < 500:
        return None
    elif until := _BAN_UNTIL.search(body):
        pause = max(0.0, (int(until[1]) * MS_NS - wall_ns) / SECOND_NS)
    else:
        pause = _retry_after(headers, wall_ns)
        if pause is None and status in _TOO_MANY:
            pause = default
    return None if pause is None else min(pause, _LONGEST_PAUSE_SECONDS)


def _retry_after(headers: Mapping[str, str], wall_ns: int) -> float | None:
    """Return the seconds that a Retry-After header names; None without one, or with a date that has passed."""
    value = next((v.strip() for k, v in headers.items() if k.lower() == "retry-after"), "")
    if _SECONDS.fullmatch(value):
        return float(value)
    with suppress(ValueError):
        moment = parsedate_to_datetime(value)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)  # one of HTTP's date formats lacks a zone
        seconds = moment.timestamp() - wall_ns / SECOND_NS
        if seconds > 0:
            return seconds
    return None


def brief(error: BaseException) -> str:
    """Return an error in one line: its type and the start of its text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
