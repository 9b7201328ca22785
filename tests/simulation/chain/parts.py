"""What all processes of the history chain share: the run, the table, the log, the connections."""

from __future__ import annotations

from dataclasses import dataclass, field

from dexorder_common.model.time_range import TimeRange
from tests.simulation.chain.broker import Wires
from tests.simulation.chain.supervisor import Supervisor
from tests.simulation.kafka import Log
from tests.simulation.run import Run
from tests.simulation.table import Table
from tests.unit.services.ingestor.history.simulated.world import World


@dataclass
class Parts:
    """Everything that outlives a process.

    Attributes:
        world: The market, and how its exchange lies.
        exchange_calls: Times and windows of all calls of the exchange.
        issued: By number, the dispatch or retraction that has it.
        begun_ns: By number, the time at which an ingestor began to work on it.
        fault_ns: Time at which candles begin to be absent, if the world has such a fault.
    """

    run: Run
    world: World
    supervisor: Supervisor = field(init=False)
    table: Table = field(init=False)
    log: Log = field(init=False)
    wires: Wires = field(init=False)
    exchange_calls: list[tuple[int, TimeRange]] = field(default_factory=list)
    issued: dict[int, str] = field(default_factory=dict)
    begun_ns: dict[int, int] = field(default_factory=dict)
    fault_ns: int = 0

    def __post_init__(self) -> None:
        run = self.run
        self.supervisor = Supervisor(run)
        self.table = Table(run.generator("table"))
        self.log = Log(2)
        self.wires = Wires(run.loop, run.network, run.generator("wires"))
        self.supervisor.on_end = self.wires.drop

    def issue(self, number: int, name: str) -> None:
        """Note who has a number; two with one number break the order of what dispatches bring."""
        self.begun_ns.setdefault(number, self.run.loop.now_ns)
        if (known := self.issued.setdefault(number, name)) != name:
            self.run.fail(f"the number {number} of {known} was given again, to {name}")
