"""Windows of event time, the same over a file and on the stream. Pure.

A window of a group closes when the event time of the group reaches its end. Event time is the later of the time of the
group's newest point and the time before which its series is settled; at the end of a file all windows close. Settled
time gets no more points, so a window has the same points whenever it closes: with the next point of the group, with the
settled time, or at the end.

A point of a window that was closed is late: it is left out and counted. A window without points is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dexorder_udf.points import Batch, Point


@dataclass
class OpenWindow:
    """The open window of a group, with the points in it; without any, it is the earliest one that may open."""

    end_ns: int
    points: list[Point] = field(default_factory=list)


class Windows:
    """Open windows of all groups. ``open`` is all of the state; the caller that passes it keeps it."""

    def __init__(self, window_ns: int, opened: dict[str, OpenWindow] | None = None) -> None:
        self._window_ns = window_ns
        self.open = {} if opened is None else opened
        self.late = 0

    @property
    def held(self) -> int:
        """Return the number of points in open windows."""
        return sum(len(each.points) for each in self.open.values())

    def add(self, group: str, point: Point) -> list[Batch]:
        """Take a point; return the window that it closes, if any."""
        end_ns = point.time_ns - point.time_ns % self._window_ns + self._window_ns
        window = self.open.setdefault(group, OpenWindow(end_ns))
        if end_ns < window.end_ns:
            self.late += 1
            return []
        if end_ns == window.end_ns:
            window.points.append(point)
            return []
        self.open[group] = OpenWindow(end_ns, [point])
        return _batches(window)

    def settle(self, group: str, time_ns: int) -> list[Batch]:
        """Take note that no point before a time will come; return the window that this closes, if any."""
        window = self.open.get(group)
        if window is None or time_ns < window.end_ns:
            return []
        self.open[group] = OpenWindow(window.end_ns + self._window_ns)
        return _batches(window)

    def rest(self) -> list[Batch]:
        """Close all windows at the end of the input."""
        rest, self.open = list(self.open.values()), {}
        return [batch for window in rest for batch in _batches(window)]


def _batches(window: OpenWindow) -> list[Batch]:
    """Return a window as a batch ordered by time; an empty list for one without points."""
    if not window.points:
        return []
    first = window.points[0]
    points = sorted(window.points, key=lambda each: each.time_ns)
    return [Batch(points, first.name, first.group_tags, window.end_ns, first.by_name)]
