"""Parameters of a trigger: the ``parameters`` map of CEPTriggerRequest. Pure."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from dexorder_cep.language.refusals import InvalidSql
from dexorder_common.model.periods import PERIODS, TRADES_PERIOD

Fire = Literal["edge", "level", "once"]
On = Literal["bar_close", "tick", "bar"]
Initial = Literal["arm", "fire"]
_Word = TypeVar("_Word", bound=str)

MAX_WARMUP_ROWS = 500
MAX_DELAY_MS = 3_600_000
MAX_ROWS = 10_000
MAX_COOLDOWN_SECONDS = 31 * 86_400
NAMES = (
    "cooldown",
    "delay_ms",
    "expires",
    "fire",
    "initial",
    "max_rows",
    "message",
    "on",
    "period",
    "rearm",
    "resolve",
    "warmup",
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Checked parameters.

    Attributes:
        fire: Which rows that fit a condition are sent: the first of a series, each, or the first of all, which ends the
            trigger.
        on: When a condition is evaluated: ``bar_close`` on closed candles, ``tick`` at every trade, on ``ohlc`` on the
            running candle; ``bar`` likewise, with at most one event for each candle.
        period_seconds: Period of the candles; 0 for trades.
        cooldown_ns: Event time after an event in which others are counted, not sent.
        rearm_percent: How far a value must go back behind its threshold before the condition can become true again.
        initial: Whether a condition that is true at the registration fires or waits for the next edge.
        warmup: Rows before the registration that are examined without firing.
        delay_ms: Time by which rows may be late.
        max_rows: Largest number of rows in one event.
        expires_ns: Time at which the trigger ends; None for never.
        resolve: Whether an event is also sent when a condition becomes false.
    """

    fire: Fire
    on: On
    period_seconds: int
    cooldown_ns: int
    rearm_percent: float
    initial: Initial
    warmup: int
    delay_ms: int
    max_rows: int
    expires_ns: int | None
    resolve: bool


def is_running(period_seconds: int, on: str | None) -> bool:
    """Return whether a trigger is evaluated on the running candle of a period; 0 stands for trades."""
    return period_seconds != TRADES_PERIOD and on in ("tick", "bar")


def periods_read(period_seconds: int, given: Mapping[str, str]) -> tuple[int, ...]:
    """Return the periods of the series that a trigger reads, with its parameters as given; 0 stands for trades.

    A running candle is built from trades; the closed ones are the rows before it.
    """
    if is_running(period_seconds, given.get("on")):
        return (TRADES_PERIOD, period_seconds)
    return (period_seconds,)


def check_parameters(
    given: Mapping[str, str],
    source: Literal["ohlc", "ticks"],
    table_period: int | None,
    default_fire: Fire,
    *,
    final_rows: str | None = None,
) -> Parameters:
    """Return the parameters with their types.

    Args:
        given: As received; parameters with other names than ``NAMES`` are values in the text.
        source: Table that the trigger reads.
        table_period: Period that the name of the table says.
        default_fire: Value of ``fire`` unless it is given.
        final_rows: Kind of the trigger, for errors, if it takes rows only when they do not change any more.

    Raises:
        InvalidSql: A value is not accepted.
    """
    period = _period(given.get("period"), source, table_period)
    resting = "tick" if source == "ticks" else "bar_close"
    on = _word(given, "on", ("bar_close", "tick", "bar"), cast(On, resting))
    if on != resting and source == "ticks":
        raise InvalidSql(0, 0, f"on: {on!r} is not accepted for ticks; a trigger on ticks is evaluated at every trade")
    if on != resting and final_rows:
        raise InvalidSql(
            0, 0, f"on: {on!r} is not accepted for {final_rows}, which takes closed candles; use bar_close"
        )
    return Parameters(
        fire=_word(given, "fire", ("edge", "level", "once"), default_fire),
        on=on,
        period_seconds=period,
        cooldown_ns=_number(given, "cooldown", 0, MAX_COOLDOWN_SECONDS, "seconds") * 1_000_000_000,
        rearm_percent=_percent(given),
        initial=_word(given, "initial", ("arm", "fire"), "arm"),
        warmup=_number(given, "warmup", MAX_WARMUP_ROWS, MAX_WARMUP_ROWS, "rows"),
        delay_ms=_number(given, "delay_ms", 0 if on == "bar_close" else 1, MAX_DELAY_MS, "milliseconds"),
        max_rows=_number(given, "max_rows", 100, MAX_ROWS, "rows", least=1),
        expires_ns=_time(given),
        resolve=_word(given, "resolve", ("off", "on"), "off") == "on",
    )


def _word(given: Mapping[str, str], name: str, accepted: tuple[_Word, ...], default: _Word) -> _Word:
    value = given.get(name)
    if value is None:
        return default
    for each in accepted:
        if each == value:
            return each
    raise InvalidSql(0, 0, f"{name}: {value[:60]!r} is not accepted; use {', '.join(accepted)}")


def _number(given: Mapping[str, str], name: str, default: int, most: int, unit: str, least: int = 0) -> int:
    value = given.get(name)
    if value is None:
        return default
    if re.fullmatch(r"[0-9]{1,10}", value) is None or not least <= int(value) <= most:
        raise InvalidSql(0, 0, f"{name}: {value[:60]!r} is not a whole number of {unit} from {least} to {most}")
    return int(value)


def _percent(given: Mapping[str, str]) -> float:
    value = given.get("rearm", "0")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < 100:
        raise InvalidSql(0, 0, f"rearm: {value[:60]!r} is not a number of per cent from 0 to 100")
    return number


def _period(value: str | None, source: str, table_period: int | None) -> int:
    if source == "ticks":
        if value is not None:
            raise InvalidSql(0, 0, f"period: {value[:60]!r} is for ohlc; leave it out for ticks")
        return 0
    if value is None:
        return table_period or 60
    if re.fullmatch(r"[0-9]{1,7}", value, re.ASCII) is None or int(value) not in PERIODS:
        accepted = ", ".join(map(str, PERIODS))
        raise InvalidSql(0, 0, f"period: {value[:60]!r} is not a period in seconds; use {accepted}")
    if table_period not in (None, int(value)):
        raise InvalidSql(0, 0, f"period: {value} s contradicts the table's period of {table_period} s")
    return int(value)


def _time(given: Mapping[str, str]) -> int | None:
    value = given.get("expires")
    if value is None or value == "none":
        return None
    try:
        if value.isdigit():
            moment = int(value) if len(value) < 12 else -1
        else:
            parsed = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
            moment = int((parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp())
        if moment < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidSql(
            0, 0, f"expires: {value[:60]!r} is not a time; use 2026-01-31T12:00:00Z, seconds since 1970 or none"
        ) from None
    return moment * 1_000_000_000
