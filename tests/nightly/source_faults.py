"""Faults between Kafka and Iceberg.

Each fault starts from a rig in which everything runs and is settled; it returns when its processes are dead, in the
middle of a batch. Then the dead processes are restarted, more pages are produced, and the whole tables are compared
with everything that was ever sent.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from dexorder_spark.records.fault import Moment
from tests.nightly.numbered_pages import Verdict
from tests.nightly.source_rig import PATIENCE_SECONDS, Rig, kill_at_once
from tests.rig.processes import until

Death = Callable[[Rig], None]


def outlive(rig: Rig, death: Death, *, forget_commits: bool = False) -> Verdict:
    """Run one fault; return the comparison of the tables with the records sent.

    Args:
        forget_commits: The group's offsets are lost too, so that only the table's are left.
    """
    rig.warm_up()
    death(rig)
    if forget_commits:
        rig.source.kill()
        rig.forget_commits()
    rig.revive()
    return rig.finish()


# ---- udsource


def source_in_a_read(rig: Rig) -> None:
    """`kill -9` while it sends a message."""
    rig.cut_in_a_read(lambda: rig.source.kill())


def source_before_the_ack(rig: Rig) -> None:
    """`kill -9` while a batch is read but not acked."""
    with rig.read_and_not_acked():
        rig.source.kill()


def source_around_the_ack(rig: Rig) -> None:
    """`kill -9` at a random moment around the ack of a batch."""
    with rig.read_and_not_acked():
        pass
    time.sleep(random.uniform(0.0, 1.0))
    rig.source.kill()


# ---- the driver


def driver_at(moment: Moment) -> Death:
    """Return the fault that the hook in dexorder_spark/records/fault.py makes."""
    return lambda rig: rig.die_at(moment)


def driver_at_any_moment(rig: Rig) -> None:
    """`kill -9` of the driver's Python only; its JVM notices by itself."""
    rig.produce()
    time.sleep(random.uniform(0.0, 3.0))
    rig.driver.kill()


def both_in_a_read(rig: Rig) -> None:
    """Kill udsource and the driver at once, during a message between them."""
    rig.cut_in_a_read(lambda: kill_at_once(rig.driver, rig.source))


def both_before_the_ack(rig: Rig) -> None:
    """Kill udsource and the driver at once, after the commit of a batch's rows."""
    with rig.read_and_not_acked():
        kill_at_once(rig.driver, rig.source)


# ---- Kafka and the connection


def kafka_before_the_ack(rig: Rig) -> None:
    """Stop Kafka after a batch is read; the batch ends without it."""
    before = len(rig.relay.reports)
    with rig.read_and_not_acked():
        rig.kafka.broker.stop(signal.SIGTERM)
    until(lambda: len(rig.relay.reports) > before, PATIENCE_SECONDS, rig.tails)


def kafka_in_a_read(rig: Rig) -> None:
    """Kill Kafka while a batch is read, and cut the read, so that it must be repeated without Kafka."""
    rig.cut_in_a_read(rig.kafka.kill)


def stream_in_a_read(rig: Rig) -> None:
    """Cut only the connection, so each record is still read once; the tables alone would not show a repetition."""
    before = rig.repeats
    rig.cut_in_a_read()
    rig.settle()
    assert rig.repeats == before, "a batch had duplicate records"


# ---- the campaign


@dataclass
class Tally:
    """Number of runs of a case, and the sums of their errors."""

    name: str
    death: Death
    forget_commits: bool = False
    times: int = 0
    rows: int = 0
    """Rows in the table after the last run."""
    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    def go(self, rig: Rig) -> None:
        """Run the case again; fail on any error."""
        verdict = outlive(rig, self.death, forget_commits=self.forget_commits)
        self.times += 1
        self.rows = verdict.rows
        self.lost += verdict.lost
        self.doubled += verdict.doubled
        self.wrong += verdict.wrong + verdict.coverage
        verdict.fail_if_wrong()


_NAMES = {
    Moment.DECODED: "driver, before the Iceberg commit",
    Moment.COMMITTING: "driver, in the Iceberg commit",
    Moment.ROWS_COMMITTED: "driver, after the Iceberg commit",
    Moment.REPORTED: "driver, after the report",
}


def driver_deaths() -> list[tuple[int, list[Tally]]]:
    """Return the deaths of the driver alone."""
    named = [Tally(name, driver_at(moment)) for moment, name in _NAMES.items()]
    return [(1, [*named, Tally("driver, at any moment", driver_at_any_moment)])]


def groups() -> list[tuple[int, list[Tally]]]:
    """Return the cases by kind of fault. The number of a group divides a campaign's kills: its share."""
    after_commit = driver_at(Moment.ROWS_COMMITTED)
    return [
        (
            1,
            [
                Tally("udsource, in the middle of a read", source_in_a_read),
                Tally("udsource, between read and ack", source_before_the_ack),
                Tally("udsource, about the ack", source_around_the_ack),
            ],
        ),
        *driver_deaths(),
        (
            5,
            [
                Tally("both at once, in the middle of a read", both_in_a_read),
                Tally("both at once, between read and ack", both_before_the_ack),
            ],
        ),
        (
            10,
            [
                Tally("Kafka stopped, between read and ack", kafka_before_the_ack),
                Tally("Kafka killed, in the middle of a read", kafka_in_a_read),
            ],
        ),
        (1, [Tally("a stream cut in the middle of a message", stream_in_a_read)]),
        (
            5,
            [
                Tally("both at once, and the group's offsets lost", both_before_the_ack, forget_commits=True),
                Tally(
                    "driver, after the Iceberg commit, and the group's offsets lost", after_commit, forget_commits=True
                ),
            ],
        ),
    ]
