"""Checks of triggers, and the market data that they need. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dexorder_cep import periods_read
from dexorder_common.model.datasets import CANDLES, realtime_dataset
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.realtime import RealtimeParams
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.triggers import RegisteredTrigger, Trigger, TriggerEdit, TriggerState
from dexorder_common.model.user_events import MAX_CHANNELS, id_problem
from dexorder_relay.state.request import check_id, check_ticker

MAX_TRIGGER_ID = 128
"""Length limit of a trigger's id: an event's id contains it, and has at most 256 characters."""
MAX_TICKERS = 1_000
MAX_SQL_BYTES = 16 * 1024
MAX_PARAMETERS, MAX_PARAMETER_LENGTH = 32, 1_000
MAX_PAUSES = 8
"""Pauses that have ended and that the pipeline does not have yet; the oldest two become one, in which nothing fires."""
READING = (TriggerState.WAITING, TriggerState.RUNNING, TriggerState.PAUSED)
"""States in which a trigger reads data; suspended and ended ones read none."""


class DataRead(NamedTuple):
    """What decides which data a trigger reads: its markets, its period, and its parameter ``on``, if it has one."""

    tickers: tuple[str, ...]
    period_seconds: int
    on: str | None = None

    @staticmethod
    def of(registered: RegisteredTrigger) -> DataRead:
        """Return what a registered trigger reads."""
        trigger = registered.trigger
        return DataRead(trigger.tickers, registered.period_seconds, trigger.parameters.get("on"))


def pauses_after(known: Sequence[TimeRange], now_ns: int, *, began_ns: int | None, is_taken: bool) -> list[TimeRange]:
    """Return the ended pauses of a trigger of which the pipeline must learn, after it was paused or resumed.

    Args:
        known: The pauses before.
        began_ns: Start of the pause that ends now; None if one starts.
        is_taken: Whether the pipeline has the trigger as it was before.
    """
    if began_ns is None:
        return [] if is_taken else [*known]
    pauses = [*known, TimeRange(began_ns, max(began_ns, now_ns))]
    if len(pauses) > MAX_PAUSES:
        pauses[:2] = [TimeRange(pauses[0].start_ns, pauses[1].end_ns)]
    return pauses


def check(trigger: Trigger, venues: Collection[str]) -> None:
    """Raise InvalidRequest, with the field and its value, for a trigger that cannot be served.

    The text itself is checked by the compiler.
    """
    check_trigger_id(trigger.trigger_id)
    if trigger.callback_id:
        check_id("callback_id", trigger.callback_id)
    if trigger.client_id:
        check_id("client_id", trigger.client_id)
    check_watched(trigger, venues)
    if trigger.alert is None:
        return
    if problem := id_problem("alert.user_id", trigger.alert.user_id):
        raise InvalidRequest(problem)
    if len(trigger.alert.channels) > MAX_CHANNELS:
        raise InvalidRequest(
            f"alert.delivery.channels has {len(trigger.alert.channels)} entries; at most {MAX_CHANNELS} are allowed"
        )


def check_edit(edit: TriggerEdit) -> None:
    """Raise InvalidRequest for an edit that contradicts itself; the edited trigger is checked like a new one."""
    check_trigger_id(edit.trigger_id)
    if len(edit.removed) > MAX_PARAMETERS:
        raise InvalidRequest(
            f"removed_parameters has {len(edit.removed)} entries; at most {MAX_PARAMETERS} are allowed"
        )
    for name in edit.removed:
        if name in edit.parameters:
            raise InvalidRequest(f"removed_parameters has {name[:32]!r}, which parameters sets")


def size_of(trigger: Trigger) -> int:
    """Return the number of bytes of all that a client has written into a trigger."""
    words = (trigger.trigger_id, trigger.sql, trigger.callback_id, *trigger.tickers)
    pairs = (word for pair in trigger.parameters.items() for word in pair)
    return sum(len(word.encode(errors="surrogatepass")) for word in (*words, *pairs))


def check_trigger_id(trigger_id: str) -> None:
    """Raise InvalidRequest for an id that is empty, too long, or not printable."""
    size = len(trigger_id)
    if not 1 <= size <= MAX_TRIGGER_ID or not trigger_id.isprintable():
        raise InvalidRequest(
            f"trigger_id {trigger_id[:32]!r} has {size} characters; 1 to {MAX_TRIGGER_ID} printable ones are allowed"
        )


def check_watched(trigger: Trigger, venues: Collection[str]) -> None:
    """Raise InvalidRequest for a text that is too long, or for invalid tickers or parameters."""
    if not 1 <= len(trigger.tickers) <= MAX_TICKERS:
        raise InvalidRequest(f"tickers has {len(trigger.tickers)} entries; 1 to {MAX_TICKERS} are allowed")
    if len(set(trigger.tickers)) < len(trigger.tickers):
        raise InvalidRequest("tickers names a market twice")
    for ticker in trigger.tickers:
        check_ticker(ticker, venues)
    if (size := len(trigger.sql.encode(errors="surrogatepass"))) > MAX_SQL_BYTES:
        raise InvalidRequest(f"sql_pattern has {size} bytes; at most {MAX_SQL_BYTES} are allowed")
    if len(trigger.parameters) > MAX_PARAMETERS:
        raise InvalidRequest(f"parameters has {len(trigger.parameters)} entries; at most {MAX_PARAMETERS} are allowed")
    for name, value in trigger.parameters.items():
        if max(len(name), len(value)) > MAX_PARAMETER_LENGTH:
            raise InvalidRequest(
                f"parameters has a name or value with more than {MAX_PARAMETER_LENGTH} characters: {name[:32]!r}"
            )


def needed(read: Iterable[DataRead]) -> dict[str, RealtimeParams]:
    """Return the realtime data that is read, by ticker."""
    found: dict[str, set[int]] = {}
    for each in read:
        periods = periods_read(each.period_seconds, {} if each.on is None else {"on": each.on})
        for ticker in each.tickers:
            found.setdefault(ticker, set()).update(periods)
    return {ticker: params_of(periods) for ticker, periods in found.items()}


def covers(wanted: Mapping[str, RealtimeParams], more: Mapping[str, RealtimeParams]) -> bool:
    """Return whether the data of some triggers includes everything that others need."""
    return all(
        (known := wanted.get(ticker)) is not None and RealtimeParams.union((known, params)) == known
        for ticker, params in more.items()
    )


def params_of(periods: Collection[int]) -> RealtimeParams:
    """Return the parameters of a subscription to series of these periods; 0 stands for trades."""
    candles = {period for period in periods if realtime_dataset(period) is CANDLES}
    return RealtimeParams(candles != {*periods}, tuple(sorted(candles)))


def changes(
    wanted: Mapping[str, RealtimeParams], present: Mapping[str, tuple[str, RealtimeParams]]
) -> tuple[list[tuple[str, RealtimeParams]], list[str]]:
    """Return the subscriptions to start, and the ids of those to stop.

    Args:
        present: Id and parameters of the subscription that serves each ticker's triggers.
    """
    start = [(ticker, params) for ticker, params in wanted.items() if present.get(ticker, ("", None))[1] != params]
    stop = [name for ticker, (name, params) in present.items() if wanted.get(ticker) != params]
    return start, stop
