"""Rules of the registry of UDFs, and everything the relay knows of them in memory. Pure.

Registrations are durable: the caller stores a changed one before the change is answered. The driver's reports are not:
it reports once a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dexorder_common.model.errors import AlreadyExists, Exhausted, InvalidRequest, NotFound
from dexorder_common.model.udf import UdfDefinition, UdfRegistration, UdfState, UdfStatus, check_udf_name

KEPT_LINES = 500
"""Lines of stderr that are kept of a UDF."""
MAX_LINE = 4_096
MAX_UDFS = 1_000
MAX_REPORTED = 10_000
"""Definitions, and statuses, of one report."""


class LogLine(NamedTuple):
    """One line, with the number that the relay gave it."""

    number: int
    time_ns: int
    text: str


class Listed(NamedTuple):
    """A UDF with everything that is known of it."""

    definition: UdfDefinition | None
    status: UdfStatus
    declared: bool
    client_id: str


@dataclass
class Report:
    """Parts of a report of the driver that are there."""

    parts: int = 0
    declared: dict[str, UdfDefinition] = field(default_factory=dict)
    statuses: dict[str, UdfStatus] = field(default_factory=dict)


@dataclass
class UdfRegistry:
    """State of the registry; single-threaded."""

    registrations: dict[str, UdfRegistration] = field(default_factory=dict)
    declared: dict[str, UdfDefinition] = field(default_factory=dict)
    statuses: dict[str, UdfStatus] = field(default_factory=dict)
    reported_ns: int = 0
    _report: Report = field(default_factory=Report)
    _logs: dict[str, deque[LogLine]] = field(default_factory=dict)
    _lines: int = 0

    def start(
        self, name: str, definition: UdfDefinition | None, *, anew: bool, client_id: str, wall_ns: int
    ) -> UdfRegistration | None:
        """Return the registration that a start makes, to be kept and stored; None if such a UDF runs already.

        Args:
            definition: None for the one that was given before, or that the Spark host's file has.
            wall_ns: Generations grow even if the database is restored, so they are at least this time.

        Raises:
            InvalidRequest: The name or the definition is invalid.
            NotFound: This name is not defined.
            AlreadyExists: A UDF of this name runs with another definition.
            Exhausted: There are too many.
        """
        check_udf_name(name)
        known = self.registrations.get(name)
        if definition is None:
            definition = known.definition if known else None
            if definition is None and name not in self.declared:
                raise NotFound(
                    f"UDF {name!r} is not known: neither was it started before, nor does the file on the Spark host "
                    f"(DEXORDER_SPARK_UDFS) declare it; declared are: {', '.join(sorted(self.declared)) or 'none'}"
                )
        else:
            definition.check()
            if self.runs(name) and definition != (known.definition if known else None):
                raise AlreadyExists(f"UDF {name!r} runs with another definition; stop it first")
        if self.runs(name) and not anew:
            return None
        if known is None and len(self.registrations) >= MAX_UDFS:
            raise Exhausted(f"there are {MAX_UDFS} UDFs already; start one of them with this definition")
        generation = max(wall_ns // 1_000, known.generation + 1 if known else 1)
        since = generation if anew else known.since_generation if known else 0
        return UdfRegistration(name, generation, False, since, definition, client_id)

    def owned(self, client_id: str) -> int:
        """Return the number of UDFs, running or stopped, that a client has started."""
        return sum(each.client_id == client_id for each in self.registrations.values())

    def stop(self, name: str) -> UdfRegistration:
        """Return the registration that a stop makes; NotFound for an unknown UDF."""
        known = self.registrations.get(name)
        if known is None and name not in self.declared:
            raise NotFound(f"UDF {name[:64]!r} is not known")
        return replace(known or UdfRegistration(name, 1, False), stopped=True)

    def runs(self, name: str) -> bool:
        """Return whether a UDF is to run, and has not given up."""
        known, status = self.registrations.get(name), self.statuses.get(name)
        wanted = not known.stopped if known else name in self.declared and status is not None
        return wanted and not (status is not None and status.state in (UdfState.FAILED, UdfState.STOPPED))

    def keep(self, registration: UdfRegistration) -> None:
        """Keep a registration that is on disk."""
        self.registrations[registration.name] = registration

    def report(
        self,
        declared: Iterable[UdfDefinition],
        statuses: Iterable[UdfStatus],
        logs: Mapping[str, Sequence[tuple[int, str]]],
        *,
        now_ns: int,
        part: int = 0,
        more: bool = False,
    ) -> None:
        """Take a part of a report of the driver; its definitions and statuses count when the last part is there.

        Lines are those since the last report, and are kept at once.

        Raises:
            InvalidRequest: The part before it is missing.
            Exhausted: The report has too many definitions or statuses.
        """
        taken = self._report = Report() if part == 0 else self._report
        if part != taken.parts:
            raise InvalidRequest(f"part {part} is not the next one, {taken.parts}; send the report again from part 0")
        taken.parts += 1
        taken.declared |= {each.name: each for each in declared}
        taken.statuses |= {each.name: each for each in statuses}
        if (most := max(len(taken.declared), len(taken.statuses))) > MAX_REPORTED:
            self._report = Report()
            raise Exhausted(f"a report of {most} UDFs; at most {MAX_REPORTED} are allowed")
        self._keep_lines(logs)
        if not more:
            self.declared, self.statuses, self.reported_ns = taken.declared, taken.statuses, now_ns
            self._report = Report()
            for name in self._logs.keys() - self.statuses.keys() - self.registrations.keys():
                del self._logs[name]

    def _keep_lines(self, logs: Mapping[str, Sequence[tuple[int, str]]]) -> None:
        for name, lines in logs.items():
            kept = self._logs.setdefault(name, deque(maxlen=KEPT_LINES))
            for time_ns, text in lines:
                self._lines += 1
                kept.append(LogLine(self._lines, time_ns, text[:MAX_LINE]))

    def listed(self) -> list[Listed]:
        """Return all UDFs by name."""
        names = {*self.registrations, *self.declared, *self.statuses}
        return [self._listed(name) for name in sorted(names)]

    def _listed(self, name: str) -> Listed:
        known = self.registrations.get(name)
        definition = (known.definition if known else None) or self.declared.get(name)
        status = self.statuses.get(name) or UdfStatus(name, UdfState.UNKNOWN)
        if known is not None and status.generation != known.generation and not known.stopped:
            status = replace(status, state=UdfState.UNKNOWN, message="")
        return Listed(definition, status, name in self.declared, known.client_id if known else "")

    def lines(self, name: str, after: int) -> list[LogLine]:
        """Return the lines of a UDF after a number; NotFound for an unknown UDF."""
        if name not in self._logs and name not in {*self.registrations, *self.declared, *self.statuses}:
            raise NotFound(f"UDF {name[:64]!r} is not known")
        return [line for line in self._logs.get(name, ()) if line.number > after]
