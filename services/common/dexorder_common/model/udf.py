"""Declaration of a user's function (UDF) on the stream: its program, its input, the place of its output. Pure.

The relay keeps declarations, the Spark driver runs them; ``dexorder_common/rpc/udf_messages.py`` converts them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.instrument import Instrument
from dexorder_common.model.periods import PERIOD_SECONDS, PERIODS
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS, parse_time

UDF_PREFIX = "udf_"
"""Prefix of the tables with the output of UDFs; the rest is the UDF's name."""
MAX_NAME_LENGTH = 48
_NAME = re.compile(rf"[a-z][a-z0-9_]{{0,{MAX_NAME_LENGTH - 1}}}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
OHLC, TICKS = "ohlc", "ticks"
INPUTS = (OHLC, TICKS)
DEFAULT_TIMEOUT_S, DEFAULT_ANSWER_S = 10.0, 120.0
MAX_DEFINITION_BYTES = 256 * 1024
"""Bytes of all texts of a definition together, so that an answer has room for several."""
T = TypeVar("T")


@dataclass(frozen=True)
class UdfCommand:
    """Address of a UDF: exactly one of a program, a Unix socket and a gRPC address."""

    prog: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    socket: str = ""
    grpc: str = ""

    def check(self, name: str) -> None:
        """Raise InvalidRequest unless exactly one way is given."""
        given = [way for way in ("prog", "socket", "grpc") if getattr(self, way)]
        if len(given) != 1:
            raise InvalidRequest(f"UDF {name}: {' and '.join(given) or 'none'} of prog, socket, grpc is set; set one")
        if (self.args or self.env) and not self.prog:
            raise InvalidRequest(f"UDF {name}: args and env belong to prog, and {given[0]} is set")


@dataclass(frozen=True)
class UdfInput:
    """Input of a UDF.

    Attributes:
        table: ``ohlc`` for candles, ``ticks`` for trades.
        tickers: Only these; empty for all.
        periods: Only candles of these periods, in seconds; empty for all.
        since_ns: Time of the first record, as far back as the topic has it; None for records produced after the start.
        history: Include candles that requests for history bring.
        window_seconds: Length of the windows of a UDF that wants batches; 0 for one that wants a stream.
    """

    table: str = OHLC
    tickers: tuple[str, ...] = ()
    periods: tuple[int, ...] = ()
    since_ns: int | None = None
    history: bool = False
    window_seconds: int = 0

    def check(self, name: str) -> None:
        """Raise InvalidRequest for a value that cannot be."""
        if self.table not in INPUTS:
            raise InvalidRequest(f"UDF {name}: input.table {self.table!r} is not one of {', '.join(INPUTS)}")
        for ticker in self.tickers:
            _of(name, Instrument.parse, ticker)
        for period in self.periods:
            if period not in PERIODS:
                raise InvalidRequest(f"UDF {name}: input.periods {period} is not one of {sorted(PERIODS)}")
        if self.periods and self.table == TICKS:
            raise InvalidRequest(f"UDF {name}: input.periods {list(self.periods)} do not belong to table ticks")
        if self.history and self.table == TICKS:
            raise InvalidRequest(
                f"UDF {name}: input.history does not belong to table ticks; history is fetched for ohlc only"
            )
        if not 0 <= (self.since_ns or 0) <= MAX_TIME_NS:
            raise InvalidRequest(f"UDF {name}: input.since {self.since_ns} is outside [0, {MAX_TIME_NS}] nanoseconds")
        if not 0 <= self.window_seconds <= 31 * 86_400:
            raise InvalidRequest(f"UDF {name}: input.window {self.window_seconds} s is not between 0 and 31 days")


@dataclass(frozen=True)
class UdfOutput:
    """Destinations of the output in addition to the table.

    Attributes:
        topic: Kafka topic, written through the gateway; empty for none.
        user_id: User who gets an event for each point; empty for none.
        title: First line of these events.
    """

    topic: str = ""
    user_id: str = ""
    title: str = ""

    def check(self, name: str) -> None:
        """Raise InvalidRequest for a value that cannot be."""
        if self.topic and not _TOPIC.fullmatch(self.topic):
            raise InvalidRequest(f"UDF {name}: output.topic {self.topic!r} is not a topic's name")
        if self.topic.startswith("dexorder."):
            raise InvalidRequest(f"UDF {name}: output.topic {self.topic!r} is the suite's own; choose another name")
        if self.title and not self.user_id:
            raise InvalidRequest(f"UDF {name}: output.title is set, and output.user_id is not")


@dataclass(frozen=True)
class UdfDefinition:
    """One UDF.

    Attributes:
        name: Its output is the table ``trading.udf_<name>``.
        program: Name of the command in the Spark host's file; empty if ``command`` is given.
        options: Values of each option as text; the UDF's own info says their types.
        timeout_seconds: Longest silence of the UDF while it is expected to answer.
        answer_seconds: Longest time for accepting a piece of input, and for the answer to a snapshot request, which
            comes after the output of all earlier input.
    """

    name: str
    program: str = ""
    command: UdfCommand = UdfCommand()
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    input: UdfInput = UdfInput()
    output: UdfOutput = UdfOutput()
    timeout_seconds: float = DEFAULT_TIMEOUT_S
    answer_seconds: float = DEFAULT_ANSWER_S

    def check(self) -> None:
        """Raise InvalidRequest, naming the field, unless the definition can be run."""
        check_udf_name(self.name)
        if self.program:
            check_udf_name(self.program)
            if self.command != UdfCommand():
                raise InvalidRequest(f"UDF {self.name}: program and command are set; set one")
        else:
            self.command.check(self.name)
        self.input.check(self.name)
        self.output.check(self.name)
        if (size := self._text_bytes()) > MAX_DEFINITION_BYTES:
            raise InvalidRequest(
                f"UDF {self.name}: its args, env, options and tickers have {size} bytes; "
                f"at most {MAX_DEFINITION_BYTES} are allowed"
            )
        for setting in ("timeout_seconds", "answer_seconds"):
            if not 1 <= (value := getattr(self, setting)) <= 3_600:
                raise InvalidRequest(f"UDF {self.name}: {setting} {value:g} is not between 1 and 3600")

    def _text_bytes(self) -> int:
        env, options = self.command.env.items(), self.options.items()
        pairs = (text for pair in env for text in pair)
        values = (text for name, given in options for text in (name, *given))
        return sum(len(text.encode()) for text in (*self.command.args, *pairs, *values, *self.input.tickers))

    @property
    def table(self) -> str:
        """Name of its table, with the namespace."""
        return f"trading.{UDF_PREFIX}{self.name}"


class UdfState(IntEnum):
    """State of a UDF, with the numbers of the message."""

    UNKNOWN = 0
    """The Spark driver has not reported it yet."""
    STARTING = 1
    RUNNING = 2
    WAITING = 3
    """Something that it needs is away (the source, the relay, the catalog, a sink); it continues by itself."""
    FAILED = 4
    """It has given up and stays so until it is started again."""
    STOPPED = 5


@dataclass(frozen=True)
class UdfStatus:
    """State of a UDF as the driver knows it.

    Attributes:
        message: The UDF's own words for FAILED, the awaited event for WAITING; else empty.
        rows: Rows in the table.
        fed: Points fed since the driver's start.
        late: Points since then that were not fed because they came after later ones.
        lag: Records of the topic without complete output.
        generation: Number of the start that this is about; 0 for one of the file that no call has started.
    """

    name: str
    state: UdfState
    message: str = ""
    rows: int = 0
    fed: int = 0
    late: int = 0
    lag: int = 0
    restarts: int = 0
    generation: int = 0


@dataclass(frozen=True)
class UdfRegistration:
    """Record of a UDF at the relay.

    Attributes:
        generation: Number of the last start; it grows. A start from scratch has ``begins_anew`` set.
        definition: None for the one that the Spark host's file has under this name.
        since_generation: The last start from scratch; state of an older one is ignored.
        client_id: Who started it; empty without identity.
    """

    name: str
    generation: int
    stopped: bool
    since_generation: int = 0
    definition: UdfDefinition | None = None
    client_id: str = ""


def check_udf_name(name: str) -> None:
    """Raise InvalidRequest unless a table and a folder can have this name."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"UDF name {name[:64]!r} is not a lower-case letter and up to {MAX_NAME_LENGTH - 1} lower-case letters,"
            " digits and underscores"
        )


def definition_from(name: str, given: Mapping[str, Any]) -> UdfDefinition:
    """Return the definition of an entry under ``udfs:`` in a YAML file; InvalidRequest names the field at fault."""
    given = dict(given)
    command = UdfCommand(
        _text(name, given, "prog"),
        tuple(map(str, _list(name, given, "args"))),
        {str(key): str(value) for key, value in _map(name, given, "env").items()},
        _text(name, given, "socket"),
        _text(name, given, "grpc"),
    )
    options = {
        str(key): tuple(map(option_text, value if isinstance(value, list) else [value]))
        for key, value in _map(name, given, "options").items()
    }
    definition = UdfDefinition(
        name,
        _text(name, given, "program"),
        command,
        options,
        _input(name, _map(name, given, "input")),
        _output(name, _map(name, given, "output")),
        _number(name, given, "timeout_seconds", DEFAULT_TIMEOUT_S),
        _number(name, given, "answer_seconds", DEFAULT_ANSWER_S),
    )
    _nothing_left(name, "", given)
    definition.check()
    return definition


def option_text(value: Any) -> str:
    """Return an option's value of a YAML file as text."""
    return json.dumps(value) if isinstance(value, bool | float | int) else str(value)


def _input(name: str, given: dict[str, Any]) -> UdfInput:
    periods = tuple(_of(name, parse_period, str(each)) for each in _list(name, given, "periods"))
    made = UdfInput(
        _text(name, given, "table") or OHLC,
        tuple(map(str, _list(name, given, "tickers"))),
        periods,
        _of(name, parse_since, _text(name, given, "since")),
        bool(given.pop("history", False)),
        _of(name, parse_window, _text(name, given, "window")),
    )
    _nothing_left(name, "input.", given)
    return made


def _of(name: str, parse: Callable[[str], T], text: str) -> T:
    """Parse a text; an error names the UDF."""
    try:
        return parse(text)
    except InvalidRequest as error:
        raise InvalidRequest(f"UDF {name}: {error}") from None


def _output(name: str, given: dict[str, Any]) -> UdfOutput:
    made = UdfOutput(_text(name, given, "topic"), _text(name, given, "user_id"), _text(name, given, "title"))
    _nothing_left(name, "output.", given)
    return made


def parse_period(text: str) -> int:
    """Return the seconds of a period's name, or of a number; InvalidRequest for another text."""
    if text in PERIOD_SECONDS:
        return PERIOD_SECONDS[text]
    if text.isascii() and text.isdigit() and int(text) in PERIODS:
        return int(text)
    raise InvalidRequest(f"period {text!r} is not one of {', '.join(PERIOD_SECONDS)}")


def parse_since(text: str) -> int | None:
    """Return the time of ``now`` (None), ``earliest`` (0) or ISO 8601."""
    if text in ("", "now"):
        return None
    return 0 if text == "earliest" else parse_time(text, "input.since (now, earliest or a time)")


_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def parse_window(text: str) -> int:
    """Return the seconds of ``90s``, ``5m``, ``1h``, ``1d``; 0 for an empty text."""
    if not text:
        return 0
    if not re.fullmatch(r"[1-9]\d{0,8}[smhd]", text):
        raise InvalidRequest(f"input.window {text!r} is not a number and s, m, h or d, for example 1h")
    return int(text[:-1]) * _UNITS[text[-1]]


def window_of(time_ns: int, window_seconds: int) -> int:
    """Return the end of the window that contains a time; windows are counted from the epoch."""
    size_ns = window_seconds * SECOND_NS
    return time_ns // size_ns * size_ns + size_ns


def _text(name: str, given: dict[str, Any], key: str) -> str:
    value = given.pop(key, None)
    if isinstance(value, list | dict):
        raise InvalidRequest(f"UDF {name}: {key} is not text")
    return "" if value is None else str(value)


def _number(name: str, given: dict[str, Any], key: str, default: float) -> float:
    value = given.pop(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"UDF {name}: {key} {value!r} is not a number")
    return float(value)


def _list(name: str, given: dict[str, Any], key: str) -> list[Any]:
    value = given.pop(key, None)
    if value is not None and not isinstance(value, list):
        raise InvalidRequest(f"UDF {name}: {key} is not a list")
    return value or []


def _map(name: str, given: dict[str, Any], key: str) -> dict[str, Any]:
    value = given.pop(key, None)
    if value is not None and not isinstance(value, dict):
        raise InvalidRequest(f"UDF {name}: {key} is not a map")
    return dict(value or {})


def _nothing_left(name: str, prefix: str, given: Mapping[str, Any]) -> None:
    if given:
        raise InvalidRequest(f"UDF {name}: {prefix}{next(iter(given))} is not a known key")
