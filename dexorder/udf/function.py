"""Base of user-defined functions: options, state of each group, snapshot and restore. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

from dexorder.udf.outputs import check_outputs
from dexorder_udf.options import OptionValue, ValueType
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge

T = TypeVar("T")
S = TypeVar("S")


class Same:
    """Type of `SAME`."""


SAME = Same()
"""Output that is the input: its frames are sent on as they came, without being encoded again."""
Output = Point | Batch | Same | Iterable[Point | Batch] | None

_REQUIRED: Any = object()
_STATE_VERSION = 1


class Duration(int):
    """Duration in nanoseconds; type of an option that is written as 10s or 1h30m."""


_VALUE_TYPES: dict[type, ValueType] = {
    bool: ValueType.BOOL,
    int: ValueType.INT,
    float: ValueType.DOUBLE,
    str: ValueType.STRING,
    Duration: ValueType.DURATION,
}


@dataclasses.dataclass
class Option:
    """Declaration of an option; see `option`."""

    kind: type
    default: Any
    help: str
    name: str = ""

    @property
    def value_type(self) -> ValueType:
        """Return the type on the wire."""
        return _VALUE_TYPES[self.kind]

    @property
    def required(self) -> bool:
        """Return whether its default is missing."""
        return self.default is _REQUIRED

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return instance.__dict__[self.name]


def option(kind: type[T], default: T = _REQUIRED, *, help: str = "") -> T:
    """Declare an option as a class attribute; in an instance the attribute is its value.

    Args:
        kind: bool, int, float, str or Duration.
        default: Value if the option is not given; without a default it must be given.
        help: Its meaning.
    Raises:
        TypeError: The kind is another one.
    """
    if kind not in _VALUE_TYPES:
        raise TypeError(f"option of type {kind.__name__}; use bool, int, float, str or Duration")
    return cast(T, Option(kind, default, help))


class Function(Generic[S]):
    """A user-defined function. Derive a class, declare options, and override `point` or `batch`.

    The state of a group is what `new_state` returns: a dataclass, or a value of JSON types. It is given to `point` and
    `batch`, which change it in place, and is in the snapshot. A function without state leaves `new_state` alone.

    An exception from any method ends the function with its text as the error that the host reports.
    """

    wants: ClassVar[Edge] = Edge.STREAM
    """Edge.STREAM: `point` is called; Edge.BATCH: `batch` is called."""
    provides: ClassVar[Edge] = Edge.STREAM
    """Edge.STREAM: outputs are points; Edge.BATCH: batches."""
    outputs: ClassVar[Mapping[str, type]] = {}
    """Types of the fields of all outputs, by name: bool, int, float or str. Optional. A field that is not declared, or
    has another type, is an error; whoever reads the rows gets these columns also while no row has a value."""
    max_groups: ClassVar[int] = 1_000_000
    """More groups are an error, as the host does not tell when a group ends."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Set the options; used by the agent and by tests.

        Raises:
            ValueError: An option is unknown, missing, or refused by `check`.
        """
        given = dict(values or {})
        for name, each in self.options().items():
            if name not in given and each.required:
                raise ValueError(f'option "{name}" is required: {each.help or each.value_type.name.lower()}')
            self.__dict__[name] = given.pop(name, each.default)
        if given:
            raise ValueError(
                f'unknown option "{next(iter(given))}"; the options: {", ".join(self.options()) or "none"}'
            )
        self._groups: dict[str, S] = {}
        self._timers: dict[str, int] = {}
        self._group = ""
        self.check()

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        check_outputs(cls.__name__, cls.outputs)
        if cls.has_timers():
            if cls.wants is Edge.BATCH:
                raise TypeError(f"{cls.__name__}: timer is for points; a batch comes when its window is closed")
            if cls.snapshot is not Function.snapshot or cls.restore is not Function.restore:
                raise TypeError(f"{cls.__name__}: with timer leave snapshot and restore alone; they have the timers")

    @classmethod
    def has_timers(cls) -> bool:
        """Return whether it overrides `timer`."""
        return cls.timer is not Function.timer

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Return the declared options by name, in the order of declaration."""
        found: dict[str, Option] = {}
        for each in reversed(cls.__mro__):
            found.update({name: value for name, value in vars(each).items() if isinstance(value, Option)})
        return found

    def check(self) -> None:
        """Override to check the options; a ValueError refuses them."""

    def new_state(self) -> S:
        """Override to return the state of a group before its first data."""
        return cast(S, None)

    def point(self, point: Point, state: S) -> Output:
        """Override for a stream edge: take a point and return outputs, or `SAME`."""
        raise NotImplementedError(f"{type(self).__name__} does not override point")

    def batch(self, batch: Batch, state: S) -> Output:
        """Override for a batch edge: take a batch and return outputs, or `SAME`."""
        raise NotImplementedError(f"{type(self).__name__} does not override batch")

    def timer(self, time_ns: int, state: S) -> Output:
        """Override to return outputs when the event time of a group reaches a time that `set_timer` was given.

        That is before the first point of this time or a later one, or, without such a point, when the series is
        settled to it; over a file, when its newest point of any group is not before it. Settled points can't come any
        more, so the calls of a group and their order are the same on the stream and over a file.
        """
        return None

    def set_timer(self, time_ns: int | None) -> None:
        """Set the timer of the group that is processed now, instead of the one before; None removes it."""
        if time_ns is None:
            self._timers.pop(self._group, None)
        else:
            self._timers[self._group] = time_ns

    def finish(self, groups: Mapping[str, S]) -> Output:
        """Override to send the remaining output at the end of the input."""
        return None

    # Called by the agent

    def state_of(self, group: str) -> S:
        """Return the state of a group, a new one at first.

        Raises:
            ValueError: There are more groups than ``max_groups``.
        """
        try:
            return self._groups[group]
        except KeyError:
            if len(self._groups) >= self.max_groups:
                raise ValueError(f"more than {self.max_groups:,} groups (max_groups)") from None
            return self._groups.setdefault(group, self.new_state())

    def reach(self, group: str, time_ns: int) -> Iterator[Output]:
        """Yield the outputs of the timers of a group, up to a time.

        Raises:
            ValueError: A timer sets one that is not later, and so would not end.
        """
        while (due_ns := self._timers.get(group)) is not None and due_ns <= time_ns:
            state = self.state_of(group)
            del self._timers[group]
            self._group = group
            yield self.timer(due_ns, state)
            if (following := self._timers.get(group)) is not None and following <= due_ns:
                raise ValueError(f"set_timer: {following} is not after {due_ns}, the time of the timer that sets it")

    def take(self, group: str, point: Point) -> Output:
        """Return what `point` returns, after the timers that are due."""
        state, self._group = self.state_of(group), group
        return self.point(point, state)

    def reach_all(self, time_ns: int) -> Iterator[Output]:
        """Yield the outputs of the timers of all groups, up to a time."""
        for group in [*self._timers]:
            yield from self.reach(group, time_ns)

    def end(self) -> Output:
        """Return the outputs of `finish`."""
        return self.finish(self._groups)

    def snapshot(self) -> bytes:
        """Return the state of all groups as JSON; override together with `restore` for another format."""
        groups = {group: state for group, state in self._groups.items() if state is not None}
        if not groups and not self._timers:
            return b""
        content = {"version": _STATE_VERSION, "function": type(self).__name__, "groups": groups}
        if self._timers:
            content["timers"] = self._timers
        return json.dumps(content, default=_plain, separators=(",", ":")).encode()

    def restore(self, snapshot: bytes) -> None:
        """Restore a snapshot.

        Raises:
            ValueError: The snapshot belongs to another function or version.
        """
        self._groups = {}
        self._timers = {}
        if not snapshot:
            return
        try:
            content = json.loads(snapshot)
            made_by = content["function"], content["version"]
            groups: dict[str, Any] = content["groups"]
            self._timers = dict(content.get("timers", {}))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"the snapshot is not one of a dexorder function: {error!r}") from None
        if made_by != (type(self).__name__, _STATE_VERSION):
            raise ValueError(
                f"the snapshot is of {made_by[0]} version {made_by[1]}, not {type(self).__name__} version 1"
            )
        for group, value in groups.items():
            self._groups[group] = _loaded(self.new_state(), value)


def values_of(function: type[Function[Any]], given: Mapping[str, list[OptionValue]]) -> dict[str, Any]:
    """Return the values of options as they came with init.

    Raises:
        ValueError: An option has another number or type of values than declared.
    """
    declared = function.options()
    values: dict[str, Any] = {}
    for name, found in given.items():
        if name in declared:
            expected = declared[name].value_type
            if [each.type for each in found] != [expected]:
                types = ", ".join(each.type.name.lower() for each in found) or "no value"
                raise ValueError(f'option "{name}" takes one {expected.name.lower()}, not {types}')
        values[name] = found[0].value if found else True
    return values


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    raise TypeError(f"state: {value!r:.100} of type {type(value).__name__} is not a dataclass or a JSON type")


def _loaded(new: Any, value: Any) -> Any:
    """Return a value read from JSON as the type of a new state, with the dataclasses in it."""
    if not dataclasses.is_dataclass(new) or isinstance(new, type):
        return value
    names = [each.name for each in dataclasses.fields(new)]
    if not isinstance(value, dict) or set(value) != set(names):
        raise ValueError(f"the snapshot's state has the fields {sorted(value)}, not {sorted(names)}")
    return type(new)(**{name: _loaded(getattr(new, name), value[name]) for name in names})
