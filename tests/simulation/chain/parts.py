"""What all processes of the history chain share: the run, the table, the log, the connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import Dispatch
from dexorder_common.model.time_range import TimeRange
from tests.simulation.chain.broker import Wires
from tests.simulation.chain.supervisor import Supervisor
from tests.simulation.disk import Disk
from tests.simulation.kafka import Log
from tests.simulation.run import Run
from tests.simulation.table import Table
from tests.unit.services.ingestor.history.simulated.world import World


@dataclass(frozen=True)
class Begun:
    """A dispatch on which an ingestor works, the job that it is of, and since when."""

    dispatch: Dispatch
    job: int
    began_ns: int


@dataclass
class Parts:
    """Everything that outlives a process.

    Attributes:
        world: The market, and how its exchange lies.
        exchange_calls: Times and windows of all calls of the exchange.
        issued: By number, the dispatch or retraction that has it.
        begun: By id, the dispatches on which an ingestor began to work.
        refusing: Names of the ingestors that the exchange refuses now.
        on_work: Called with the name of an ingestor that begins to work.
        fault_ns: Time at which candles begin to be absent, if the world has such a fault.
    """

    run: Run
    world: World
    supervisor: Supervisor = field(init=False)
    table: Table = field(init=False)
    log: Log = field(init=False)
    wires: Wires = field(init=False)
    disk: Disk = field(init=False)
    exchange_calls: list[tuple[int, TimeRange]] = field(default_factory=list)
    issued: dict[int, str] = field(default_factory=dict)
    begun: dict[str, Begun] = field(default_factory=dict)
    refusing: set[str] = field(default_factory=set)
    on_work: Callable[[str], None] = lambda name: None
    fault_ns: int = 0

    def __post_init__(self) -> None:
        run = self.run
        self.supervisor = Supervisor(run)
        self.table = Table(run.generator("table"))
        self.log = Log(1)
        self.wires = Wires(run.loop, run.network, run.generator("wires"))
        self.disk = Disk(run.generator("disk"), self.supervisor.moment)
        self.supervisor.on_end = self.wires.drop

    def begin(self, dispatch: Dispatch) -> None:
        """Note that an ingestor works on a dispatch."""
        number, dispatch_id = number_of(dispatch.dispatch_id), dispatch.dispatch_id
        self.issue(number, dispatch_id)
        rows = self.disk.connection.execute("SELECT job_id FROM dispatches WHERE number = ?", (number,)).fetchall()
        job = rows[0][0] if rows else None
        self.begun.setdefault(dispatch_id, Begun(dispatch, job or 0, self.run.loop.now_ns))

    def is_fenced(self, dispatch_id: str, at_ns: int) -> bool:
        """Return whether another dispatch of the same job was under way at a time, which takes the place of this."""
        mine = self.begun[dispatch_id]
        return any(
            each.began_ns < at_ns and each.job == mine.job and each.dispatch.span.overlaps(mine.dispatch.span)
            for other, each in self.begun.items()
            if number_of(other) > number_of(dispatch_id) and mine.job
        )

    def issue(self, number: int, name: str) -> None:
        """Note who has a number; two with one number break the order of what dispatches bring."""
        if (known := self.issued.setdefault(number, name)) != name:
            self.run.fail(f"the number {number} of {known} was given again, to {name}")
