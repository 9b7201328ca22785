"""Points and batches, the input and output of a UDF, and their groups, as Kapacitor forms them. Pure.

A group id is "" without dimensions, else ``k=v,k2=v2`` in the order of the dimensions; grouped by name it starts with
the name and a newline, and is the name alone without dimensions. A tag that a point does not have counts as "".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = bool | int | float | str
MARK = "dexorder:event-time"
"""Name of a point that stands for the time before which a group is complete; see `mark`."""


def group_id(name: str, dimensions: Sequence[str], tags: Mapping[str, str], by_name: bool = False) -> str:
    """Return the id of the group to which a point belongs."""
    text = ",".join([f"{each}={tags.get(each, '')}" for each in dimensions])
    if by_name:
        return f"{name}\n{text}" if dimensions else name
    return text


def group_tags(dimensions: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that all points of the group share, by its dimensions."""
    return {each: tags.get(each, "") for each in dimensions}


@dataclass(slots=True)
class Point:
    """One data point. ``group`` follows from the other fields; a host ignores the UDF's value.

    Attributes:
        time_ns: Time, nanoseconds since 1970, signed 64 bits.
        tags: Text by name, for example ticker and period.
        fields: Values by name. int is sent as int64, float as double; a bool is a bool.
        name: Name of the series, Kapacitor's "measurement"; empty inside a batch.
        dimensions: Names of the tags by which points are grouped, in order.
        by_name: Whether the name is a part of the group.
    """

    time_ns: int
    tags: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Value] = field(default_factory=dict)
    name: str = ""
    dimensions: tuple[str, ...] = ()
    by_name: bool = False
    database: str = ""
    retention_policy: str = ""

    @property
    def group(self) -> str:
        """Return the id of the point's group."""
        return group_id(self.name, self.dimensions, self.tags, self.by_name)

    def with_fields(self, fields: dict[str, Value], name: str | None = None) -> Point:
        """Return a point with other fields and the same time, tags and group, so that both can be joined."""
        return Point(
            self.time_ns,
            self.tags,
            fields,
            self.name if name is None else name,
            self.dimensions,
            self.by_name,
            self.database,
            self.retention_policy,
        )

    @property
    def group_tags(self) -> dict[str, str]:
        """Return the tags that all points of the group share."""
        return group_tags(self.dimensions, self.tags)


@dataclass(slots=True)
class Batch:
    """Points of one group that belong together, for example the points of a window.

    Attributes:
        points: Their names, databases and dimensions are not sent: the batch has them.
        tags: Tags of the group; all of them are its dimensions, in alphabetical order.
        tmax_ns: End of the window, nanoseconds.
    """

    points: Sequence[Point]
    name: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    tmax_ns: int = 0
    by_name: bool = False

    def column(self, name: str) -> Sequence[Value | None]:
        """Return the values of a field in the order of the points; None where a point does not have it.

        Much faster than `points` for a function that reads few fields: no other value becomes an object.
        """
        column = getattr(self.points, "column", None)
        return [each.fields.get(name) for each in self.points] if column is None else column(name)

    @property
    def group(self) -> str:
        """Return the id of the batch's group."""
        return group_id(self.name, sorted(self.tags), self.tags, self.by_name)


def mark(time_ns: int, tags: dict[str, str]) -> Point:
    """Return the mark that says to a function with timers that a group is complete before a time."""
    return Point(time_ns, tags, {}, MARK, tuple(tags))
