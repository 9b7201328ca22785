"""Events as people read them: a title and a few lines, whatever the payload is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from services.gateway.events.channels.payloads import moment, read_facts
from services.gateway.events.model import Event, Message

_MOST_TITLE = 200


@dataclass(frozen=True, slots=True)
class _Form:
    """How a kind of payload is told.

    Attributes:
        gist: Fields whose values follow the title, as far as they are there.
        lines: Label and field of each line of the body.
        untold: Fields that say nothing more: told by the event itself or by another field, or drawn.
        names: Each way to write a field, in the protocol's snake_case or in camelCase as in protobuf's own JSON,
            and its name in the protocol. What is not in here is listed as it came.
    """

    gist: tuple[str, ...]
    lines: tuple[tuple[str, str], ...]
    untold: tuple[str, ...] = ()
    names: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        known = (*[name for _, name in self.lines], *self.untold)
        object.__setattr__(self, "names", {way: name for name in known for way in (name, _camel_case(name))})


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


_ORDER: Final = _Form(
    ("side", "quantity", "symbol"),
    (
        ("Reason", "error_message"),
        ("Market", "symbol"),
        ("Exchange", "exchange"),
        ("Side", "side"),
        ("Type", "order_type"),
        ("Quantity", "quantity"),
        ("Price", "price"),
        ("Filled", "fill_quantity"),
        ("Fill price", "fill_price"),
        ("Status", "status"),
        ("Strategy", "strategy_id"),
        ("Order", "order_id"),
    ),
    ("timestamp",),
)
_ALERT: Final = _Form(
    ("symbol", "condition"),
    (
        ("Market", "symbol"),
        ("Condition", "condition"),
        ("Price", "triggered_price"),
        ("Alert", "alert_id"),
    ),
    ("timestamp",),
)
_POSITION: Final = _Form(
    ("side", "size", "symbol"),
    (
        ("Market", "symbol"),
        ("Exchange", "exchange"),
        ("Side", "side"),
        ("Size", "size"),
        ("Entry", "entry_price"),
        ("Price", "current_price"),
        ("Open profit", "unrealized_pnl"),
        ("Closed profit", "realized_pnl"),
        ("Leverage", "leverage"),
        ("Liquidation at", "liquidation_price"),
        ("Position", "position_id"),
    ),
    ("timestamp",),
)
_WORKSPACE: Final = _Form(
    ("symbol", "timeframe"),
    (
        ("Change", "change_type"),
        ("Market", "symbol"),
        ("Timeframe", "timeframe"),
        ("Indicator", "indicator_name"),
        ("Settings", "indicator_params"),
        ("Drawing", "annotation_type"),
        ("Annotation", "annotation_id"),
        ("Workspace", "workspace_id"),
    ),
    ("annotation_data", "timestamp"),
)
_STRATEGY: Final = _Form(
    ("strategy_name",),
    (
        ("Message", "message"),
        ("Level", "log_level"),
        ("Details", "details"),
        ("Name", "strategy_name"),
        ("Strategy", "strategy_id"),
    ),
    ("timestamp",),
)
_BACKTEST: Final = _Form(
    ("strategy_name", "symbol", "timeframe"),
    (
        ("Strategy", "strategy_name"),
        ("Market", "symbol"),
        ("Timeframe", "timeframe"),
        ("From", "start_time"),
        ("To", "end_time"),
        ("Profit", "total_pnl"),
        ("Trades", "total_trades"),
        ("Won", "winning_trades"),
        ("Lost", "losing_trades"),
        ("Share won", "win_rate"),
        ("Largest drawdown", "max_drawdown"),
        ("Sharpe ratio", "sharpe_ratio"),
        ("Results", "results_path"),
        ("Backtest", "backtest_id"),
    ),
    ("strategy_id", "completed_at", "timestamp"),
)
_ANY: Final = _Form((), ())

_TYPES: Final[Mapping[int, tuple[str, _Form]]] = {
    0: ("Order placed", _ORDER),
    1: ("Order filled", _ORDER),
    2: ("Order cancelled", _ORDER),
    3: ("Order rejected", _ORDER),
    4: ("Order expired", _ORDER),
    10: ("Alert triggered", _ALERT),
    11: ("Alert created", _ALERT),
    12: ("Alert deleted", _ALERT),
    20: ("Position opened", _POSITION),
    21: ("Position closed", _POSITION),
    22: ("Position updated", _POSITION),
    23: ("Position liquidated", _POSITION),
    30: ("Workspace changed", _WORKSPACE),
    31: ("Chart annotation added", _WORKSPACE),
    32: ("Chart annotation removed", _WORKSPACE),
    33: ("Indicator updated", _WORKSPACE),
    40: ("Strategy started", _STRATEGY),
    41: ("Strategy stopped", _STRATEGY),
    42: ("Strategy says", _STRATEGY),
    43: ("Strategy failed", _STRATEGY),
    44: ("Backtest completed", _BACKTEST),
    50: ("Your container is starting", _ANY),
    51: ("Your container is ready", _ANY),
    52: ("Your container is shutting down", _ANY),
    53: ("An event could not be made", _ANY),
}
"""By the given protocol's numbers."""


def render(event: Event, *, link_url: str) -> Message:
    """Tell an event in plain text; never raises, whatever bytes the payload is.

    Args:
        link_url: Put under it; empty for none.

    Returns:
        The title is one line. What the payload's own form does not know, or all of it if it has none, is listed after
        that as it came: 40 fields or 1,500 characters of it.
    """
    what, form = _TYPES.get(event.event_type, (f"Event of type {event.event_type}", _ANY))
    facts = read_facts(event.payload, form.names)
    told = facts.told
    lines = [f"{label}: {told[name]}" for label, name in form.lines if name in told]
    lines += facts.others
    lines += [line for line in (moment(event.timestamp_ms), link_url) if line]
    return Message(_reference(event), _title(what, form, told), "\n".join(lines), event.priority, event.timestamp_ms)


def _title(what: str, form: _Form, told: Mapping[str, str]) -> str:
    gist = " ".join(told[name] for name in form.gist if name in told)
    title = " ".join(f"{what}: {gist}".split()) if gist else what
    return title if len(title) <= _MOST_TITLE else f"{title[: _MOST_TITLE - 1]}…"


def _reference(event: Event) -> str:
    key = f"{event.key.container}\0{event.key.event_id}"
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32]
