"""Rendering of events as plain text for people: a title and a few lines for any payload. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from dexorder_gateway.events.model import Event, EventMessage

_MAX_TITLE = 200
_MAX_VALUE = 500
_MAX_OTHER_LINES = 40
_MAX_OTHER_TEXT = 1500
_MAX_SHARE = 1000.0
_UNPRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters, line ends, changes of text direction, lone surrogates."""
_BEYOND_64_BITS = re.compile(rb"\d{19}")
"""A number that may exceed 64 bits, which orjson would read as a double."""
_JSON = json.JSONEncoder(ensure_ascii=False)  # for people: orjson writes no spaces
_TIMES: Final = frozenset({"start_time", "end_time"})
_SHARES: Final = frozenset({"win_rate", "max_drawdown"})


_LABELS: Final = {
    "annotation_type": "Drawing",
    "change_type": "Change",
    "current_price": "Price",
    "end_time": "To",
    "entry_price": "Entry",
    "error_message": "Reason",
    "fill_quantity": "Filled",
    "indicator_name": "Indicator",
    "indicator_params": "Settings",
    "liquidation_price": "Liquidation at",
    "log_level": "Level",
    "losing_trades": "Lost",
    "max_drawdown": "Largest drawdown",
    "order_type": "Type",
    "realized_pnl": "Closed profit",
    "results_path": "Results",
    "start_time": "From",
    "strategy_name": "Strategy",
    "symbol": "Market",
    "total_pnl": "Profit",
    "total_trades": "Trades",
    "triggered_price": "Price",
    "unrealized_pnl": "Open profit",
    "win_rate": "Share won",
    "winning_trades": "Won",
}
"""Label of a field where it is not the field's name in words."""


def _label(name: str) -> str:
    return _LABELS.get(name) or name.removesuffix("_id").replace("_", " ").capitalize()


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


class _Form:
    """Layout of the text for one kind of payload.

    Args:
        title: Fields with values that follow the title, if present.
        lines: Fields of the body, one a line.
        omitted: Fields that are not shown: duplicates of the event's own or of another field, or drawings.
        labels: Labels that differ from the usual ones.
    Attributes:
        names: Protocol's name of a field by each accepted spelling: snake_case, and camelCase as in protobuf's JSON.
            Fields with other names are listed as they are.
    """

    def __init__(self, title: str = "", lines: str = "", omitted: str = "timestamp", **labels: str) -> None:
        self.title = title.split()
        self.lines = [(labels.get(name) or _label(name), name) for name in lines.split()]
        known = (*lines.split(), *omitted.split())
        self.names = {spelling: name for name in known for spelling in (name, _camel_case(name))}


_ORDER: Final = _Form(
    "side quantity symbol",
    "error_message symbol exchange side order_type quantity price fill_quantity fill_price status strategy_id order_id",
)
_ALERT: Final = _Form("symbol condition", "message symbol condition triggered_price alert_id")
_POSITION: Final = _Form(
    "side size symbol",
    "symbol exchange side size entry_price current_price unrealized_pnl realized_pnl leverage liquidation_price"
    " position_id",
)
_WORKSPACE: Final = _Form(
    "symbol timeframe",
    "change_type symbol timeframe indicator_name indicator_params annotation_type annotation_id workspace_id",
    "annotation_data timestamp",
)
_STRATEGY: Final = _Form("strategy_name", "message log_level details strategy_name strategy_id", strategy_name="Name")
_BACKTEST: Final = _Form(
    "strategy_name symbol timeframe",
    "strategy_name symbol timeframe start_time end_time total_pnl total_trades winning_trades losing_trades win_rate"
    " max_drawdown sharpe_ratio results_path backtest_id",
    "strategy_id completed_at timestamp",
)
_ANY: Final = _Form(omitted="")

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
    42: ("Strategy message", _STRATEGY),
    43: ("Strategy failed", _STRATEGY),
    44: ("Backtest completed", _BACKTEST),
    50: ("Your container is starting", _ANY),
    51: ("Your container is ready", _ANY),
    52: ("Your container is shutting down", _ANY),
    53: ("An event could not be made", _ANY),
}
"""Title and form by number of the event type."""


def render(event: Event, *, link_url: str) -> EventMessage:
    """Return the text of an event; never raises for any payload.

    Args:
        link_url: URL for the last line; empty for none.

    Returns:
        A message with a one-line title. Fields that the payload's form does not know, or all of them without a form,
        follow unchanged: at most 40 fields or 1,500 characters.
    """
    what, form = _TYPES.get(event.event_type, (f"Event of type {event.event_type}", _ANY))
    values, others = _read_payload(event.payload, form.names)
    lines = [f"{label}: {values[name]}" for label, name in form.lines if name in values]
    lines += others
    lines += [line for line in (_moment(event.timestamp_ms), link_url) if line]
    return EventMessage(
        _reference(event), _title(what, form, values), "\n".join(lines), event.priority, event.timestamp_ms
    )


def _title(what: str, form: _Form, values: Mapping[str, str]) -> str:
    details = " ".join(values[name] for name in form.title if name in values)
    title = " ".join(f"{what}: {details}".split()) if details else what
    return title if len(title) <= _MAX_TITLE else f"{title[: _MAX_TITLE - 1]}…"


def _reference(event: Event) -> str:
    key = f"{event.key.container}\0{event.key.event_id}"
    return hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:32]


def _read_payload(payload: bytes, names: Mapping[str, str]) -> tuple[dict[str, str], Sequence[str]]:
    """Return the texts of the known fields that have a value, and one line for each other field.

    A payload that is not a JSON object is a single line.
    """
    found = _parsed(payload)
    if not isinstance(found, dict):
        text = _one_line(payload.decode(errors="replace") if found is None else found)
        return {}, [text] if text not in ("", "null") else []
    values: dict[str, str] = {}
    others: list[tuple[str, Any]] = []
    for name, value in found.items():
        if (known := names.get(name)) is None:
            others.append((name, value))
        elif text := _text(known, value):
            values[known] = text
    return values, _listed(others) if others else ()


def _listed(fields: Sequence[tuple[str, Any]]) -> list[str]:
    lines = [f"{_one_line(name)}: {text}" for name, value in fields[:_MAX_OTHER_LINES] if (text := _one_line(value))]
    return "\n".join(lines)[:_MAX_OTHER_TEXT].splitlines()


def _text(name: str, value: object) -> str:
    if name in _TIMES:
        return _moment(value) or _one_line(value)
    return _percent(value) if name in _SHARES else _one_line(value)


def _moment(milliseconds: object) -> str:
    """Return a time since the epoch as UTC; empty if it is missing or outside the calendar."""
    try:
        seconds = int(milliseconds) / 1000  # type: ignore[call-overload]
        if seconds <= 0:
            return ""
        return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "seconds").replace("+00:00", " UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _one_line(value: object) -> str:
    """Return a JSON value as one line of bounded length; empty for null."""
    text = value if isinstance(value, str) else _written(value)
    text = text[: _MAX_VALUE + 1]
    text = (text if text.isprintable() else _UNPRINTED.sub(" ", text)).strip()  # isprintable() excludes all of them
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _percent(value: object) -> str:
    try:
        share = float(str(value))
    except ValueError:
        return _one_line(value)
    return f"{share * 100:.2f}".rstrip("0").rstrip(".") + " %" if abs(share) <= _MAX_SHARE else _one_line(value)


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload) if _BEYOND_64_BITS.search(payload) else orjson.loads(payload)
    except (ValueError, RecursionError):
        return None


def _written(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    try:
        return str(value) if isinstance(value, int | float) else _JSON.encode(value)
    except (ValueError, RecursionError):
        return ""
