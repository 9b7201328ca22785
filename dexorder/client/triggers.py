"""Triggers as a client sees them: ``client.triggers``.

from dexorder import Client
client = Client()
client.triggers.add("breakout", "SELECT `close` FROM ohlc WHERE `close` > 70000", ["BTC/USDT.BINANCE"])
for event in client.triggers.events("breakout"): print(event.ticker, event.rows)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from dexorder.client.connection import RelayConnection
from dexorder.client.inputs import check_ticker, read_exact_range
from dexorder.client.moments import Moment
from dexorder.errors import RequestRefused
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.triggers import Alert, EventKind, RegisteredTrigger, Trigger, TriggerEvent
from dexorder_common.model.user_events import Channel, Preference, Priority
from dexorder_common.rpc.common_messages import decode_cursor, encode_cursor
from dexorder_common.rpc.trigger_messages import (
    decode_event,
    decode_registered,
    encode_registration,
    encode_request,
)
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb

ChannelChoice = Channel | Preference | str
_PAGE = 1_000
_TRIGGERS_IN_A_CALL = 1_000
_MAX_WAIT_SECONDS = 30
_BYTES_IN_A_CALL = 2 << 20
_ACK = ingest_pb2.CEPTriggerAck


@dataclass(frozen=True, slots=True)
class BacktestMarket:
    """Result of a backtest for one market.

    Attributes:
        rows: Stored candles or trades that were read.
        suspended: Reason for which the trigger would have been suspended; empty otherwise.
    """

    ticker: str
    rows: int
    firings: int
    suspended: str


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """Firings of a trigger over a past range.

    Attributes:
        period_seconds: Period of the candles that it reads; 0 for trades.
        events: By market, then by time.
    """

    period_seconds: int
    markets: tuple[BacktestMarket, ...]
    events: tuple[TriggerEvent, ...]
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class TriggerAnswer:
    """Answer to the registration of one of many triggers.

    Attributes:
        status: REGISTERED, ALREADY_REGISTERED, INVALID_SQL or ERROR.
        reason: Why it is refused; empty otherwise.
    """

    trigger_id: str
    status: str
    reason: str = ""

    @property
    def is_registered(self) -> bool:
        """True if it is evaluated now, or was before."""
        return self.status in ("REGISTERED", "ALREADY_REGISTERED")


@dataclass(frozen=True, slots=True)
class TriggerEdited:
    """Answer to an edit.

    Attributes:
        revision: Number of the trigger's edits, from 1 for its registration.
        taken: Whether the pipeline has taken it: rows that are settled after that are evaluated with the new text.
    """

    revision: int
    taken: bool


class AsyncTriggers:
    """Triggers of one relay, for asyncio."""

    def __init__(self, connection: RelayConnection) -> None:
        self._connection = connection

    async def add(
        self,
        trigger_id: str,
        sql: str,
        tickers: str | Iterable[str],
        parameters: Mapping[str, str] | None = None,
        *,
        callback_id: str = "",
        client_id: str = "",
        user_id: str = "",
        priority: Priority | str = Priority.NORMAL,
        channels: Sequence[ChannelChoice] = (),
    ) -> bool:
        """Register a trigger, which is evaluated until it is removed. Return whether it is new.

        Args:
            trigger_id: Repeating a call with the same id and values changes nothing.
            sql: Condition or pattern in Flink's SQL over ``ohlc`` or ``ticks`` (docs/triggers.md).
            tickers: Markets that it watches. Their live data is subscribed to while it is registered.
            parameters: For example ``{"fire": "level", "cooldown": "60"}``.
            callback_id: Name under which the events of several triggers can be read.
            client_id: Name of the caller, for ``list``.
            user_id: User who gets each firing as an ALERT_TRIGGERED event; none if empty.
            priority: Priority of these events: INFORMATIONAL, NORMAL or CRITICAL.
            channels: Their channels in the order to try them; empty for the user's own order.

        Raises:
            RequestRefused: The text or another value is refused, or the id is in use for another trigger.
        """
        trigger = new_trigger(
            trigger_id,
            sql,
            tickers,
            parameters,
            callback_id=callback_id,
            client_id=client_id,
            user_id=user_id,
            priority=priority,
            channels=channels,
        )
        stub = self._connection.stub.trigger
        answer = (await self._connection.call(stub.RegisterTrigger, encode_registration(trigger))).ack
        if answer.status in (_ACK.REGISTERED, _ACK.ALREADY_REGISTERED):
            return bool(answer.status == _ACK.REGISTERED)
        status = _ACK.TriggerStatus.Name(answer.status)
        raise RequestRefused(f"the relay answered {status}: {answer.error_message}")

    async def add_many(self, triggers: Iterable[Trigger | Mapping[str, Any]]) -> list[TriggerAnswer]:
        """Register many triggers, up to 1,000 in a call. Return an answer for each, in order.

        A refused trigger does not stop the others. Repeating the call registers the missing ones.

        Args:
            triggers: Each with the arguments of ``add`` by name, or as ``new_trigger`` returns it.

        Raises:
            RequestRefused: The client has refused a value before sending the call.
        """
        answers: list[TriggerAnswer] = []
        given = [each if isinstance(each, Trigger) else new_trigger(**each) for each in triggers]
        for part in _calls([*map(encode_registration, given)]):
            request = pb.RegisterTriggersRequest(triggers=part)
            answer = await self._connection.call(self._connection.stub.trigger.RegisterTriggers, request)
            answers += [
                TriggerAnswer(each.trigger_id, _ACK.TriggerStatus.Name(each.status), each.error_message)
                for each in answer.acks
            ]
        return answers

    async def pause(self, trigger_id: str) -> None:
        """Pause a trigger: it takes rows and does not fire; RequestUnknown for an unknown id."""
        await self._connection.call(
            self._connection.stub.trigger.PauseTrigger, pb.PauseTriggerRequest(trigger_id=trigger_id)
        )

    async def resume(self, trigger_id: str) -> None:
        """Resume a paused trigger with the state that it has by now; RequestUnknown for an unknown id."""
        await self._connection.call(
            self._connection.stub.trigger.ResumeTrigger, pb.ResumeTriggerRequest(trigger_id=trigger_id)
        )

    async def edit(
        self,
        trigger_id: str,
        sql: str | None = None,
        parameters: Mapping[str, str] | None = None,
        *,
        removed: Iterable[str] = (),
        reset: bool = False,
        wait_seconds: float = 5.0,
    ) -> TriggerEdited:
        """Change the text or parameters of a trigger, which keeps its state.

        Args:
            sql: New text; None keeps it.
            parameters: Parameters to set; others stay.
            removed: Names of parameters to remove.
            reset: Start without the state, as after ``remove`` and ``add``. Without it, an edit that can't keep the
                state is refused.
            wait_seconds: Time to wait until the pipeline has taken the edit, up to 30 s.

        Raises:
            RequestUnknown: There is no such trigger.
            RequestRefused: The text or a parameter is refused, or the state can't be kept.
        """
        if not 0 <= wait_seconds <= _MAX_WAIT_SECONDS:
            raise RequestRefused(f"wait_seconds {wait_seconds} is not from 0 to {_MAX_WAIT_SECONDS}")
        request = pb.EditTriggerRequest(
            trigger_id=trigger_id,
            sql_pattern=sql,
            parameters=parameters,
            removed_parameters=removed,
            reset=reset,
            wait_ms=round(wait_seconds * 1_000),
        )
        answer = await self._connection.call(self._connection.stub.trigger.EditTrigger, request)
        return TriggerEdited(answer.revision, answer.taken)

    async def remove(self, trigger_id: str) -> None:
        """Remove a trigger; RequestUnknown for an unknown id. Its events are kept."""
        await self._connection.call(
            self._connection.stub.trigger.DeleteTrigger, pb.DeleteTriggerRequest(trigger_id=trigger_id)
        )

    async def list(self, client_id: str = "", *, ticker: str = "") -> list[RegisteredTrigger]:
        """Return the triggers that were not removed, by time of their registration.

        Raises:
            RequestRefused: ``ticker`` is given and is not SYMBOL.VENUE.
        """
        if ticker:
            check_ticker(ticker)
        request = pb.ListTriggersRequest(client_id=client_id, ticker=ticker, page_size=_PAGE)
        pages = self._connection.pages(self._connection.stub.trigger.ListTriggers, request)
        return [decode_registered(each) async for page in pages for each in page.triggers]

    async def events(
        self, trigger_id: str = "", *, callback_id: str = "", after: Cursor | None = None
    ) -> AsyncGenerator[TriggerEvent, None]:
        """Yield the events of a trigger, or of those with a callback, after a cursor; each once, in order, without end.

        The stream is opened again behind the last event whenever it breaks. Store ``event.cursor`` to resume later; a
        relay that can't resume there says so in a note and sends all stored events.

        Raises:
            RequestRefused: Not exactly one of ``trigger_id`` and ``callback_id`` is given.
            RelayUnreachable: The relay did not answer for ``patience_seconds``.
        """
        if bool(trigger_id) == bool(callback_id):
            raise RequestRefused("name either a trigger_id or a callback_id")
        request = pb.WatchTriggerEventsRequest(after=encode_cursor(after))
        if trigger_id:
            request.trigger_id = trigger_id
        else:
            request.callback_id = callback_id
        call = self._connection.stub.trigger.WatchTriggerEvents
        async with aclosing(self._connection.resumed(call, request, "event")) as found:
            async for each in found:
                cursor, kind = decode_cursor(each.cursor), EventKind(each.kind)
                yield decode_event(each.event, kind, each.ticker, each.event_id, cursor)

    async def test(
        self,
        sql: str,
        tickers: str | Iterable[str],
        since: Moment,
        until: Moment = "now",
        parameters: Mapping[str, str] | None = None,
    ) -> BacktestResult:
        """Run a trigger over the stored candles or trades of a past range, without registering it or fetching rows.

        Raises:
            RequestRefused: A value is refused, or a market has too many rows in the range.
        """
        span = read_exact_range(since, until)
        trigger = Trigger("test", sql, _tickers(tickers), parameters=dict(parameters or {}))
        request = pb.BacktestTriggerRequest(trigger=encode_request(trigger), start_ns=span.start_ns, end_ns=span.end_ns)
        events: list[TriggerEvent] = []
        markets: list[BacktestMarket] = []
        period = 0
        stub = self._connection.stub
        async with aclosing(self._connection.answers(stub.trigger.BacktestTrigger, request)) as answers:
            async for answer in answers:
                events += [decode_event(each.event, ticker=each.ticker) for each in answer.events]
                markets += [BacktestMarket(m.ticker, m.rows, m.firings, m.suspended) for m in answer.markets]
                period = answer.period_seconds or period
        return BacktestResult(period, tuple(markets), tuple(events), span.start_ns, span.end_ns)


def new_trigger(
    trigger_id: str,
    sql: str,
    tickers: str | Iterable[str],
    parameters: Mapping[str, str] | None = None,
    *,
    callback_id: str = "",
    client_id: str = "",
    user_id: str = "",
    priority: Priority | str = Priority.NORMAL,
    channels: Sequence[ChannelChoice] = (),
) -> Trigger:
    """Return a trigger from the arguments of ``AsyncTriggers.add``; RequestRefused as there."""
    alert = _alert(user_id, priority, channels) if user_id else None
    return Trigger(trigger_id, sql, _tickers(tickers), callback_id, dict(parameters or {}), client_id, alert)


def _calls(requests: Sequence[pb.RegisterTriggerRequest]) -> Iterator[list[pb.RegisterTriggerRequest]]:
    """Yield the triggers of one call after the other."""
    part: list[pb.RegisterTriggerRequest] = []
    size = 0
    for each in requests:
        if part and (len(part) == _TRIGGERS_IN_A_CALL or size + each.ByteSize() > _BYTES_IN_A_CALL):
            yield part
            part, size = [], 0
        part.append(each)
        size += each.ByteSize()
    if part:
        yield part


def _alert(user_id: str, priority: Priority | str, channels: Sequence[ChannelChoice]) -> Alert:
    chosen = tuple(each if isinstance(each, Preference) else Preference(_member(Channel, each)) for each in channels)
    return Alert(user_id, _member(Priority, priority), chosen)


def _member(kind: Any, value: Any) -> Any:
    try:
        return kind[value] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        names = ", ".join(kind.__members__)
        raise RequestRefused(f"{kind.__name__.lower()} {value!r} is not one of {names}") from None


def _tickers(tickers: str | Iterable[str]) -> tuple[str, ...]:
    found = (tickers,) if isinstance(tickers, str) else tuple(tickers)
    for each in found:
        check_ticker(each)
    return found
