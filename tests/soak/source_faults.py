"""What goes wrong between Kafka and Iceberg, and in which state the driver comes back.

Each death needs a rig on which everything lives and is settled; it returns when what is to die is dead, in the middle
of a batch. Whatever the death, the end is the same: what is dead lives again, more pages go in, and the whole tables
are compared with all that was ever sent.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from spark.pipeline.fault import Moment
from tests.smoke.harness import wait_for
from tests.soak.numbered_pages import Verdict
from tests.soak.source_rig import PATIENCE_SECONDS, RECORDS_A_BATCH, Rig, checkpointed, kill_at_once

Death = Callable[[Rig], None]
WHOLE_TOPIC = 500
"""Records of a batch for a driver that reads a whole campaign again."""


class Checkpoint(Enum):
    """What the driver comes back with."""

    OWN = auto()
    OLDER = auto()
    """One that was copied some batches before."""
    FRESH = auto()
    """None, so it begins at the group's commits."""
    FRESH_AND_NO_COMMITS = auto()
    """None, and the group has committed nothing, so it begins at the topic's first record."""


def outlive(rig: Rig, death: Death, checkpoint: Checkpoint = Checkpoint.OWN) -> Verdict:
    """Go through it; the tables beside what was sent."""
    rig.warm_up()
    older = None
    if checkpoint is Checkpoint.OLDER:
        older = rig.save_checkpoint()
        rig.produce()
        rig.settle()
    death(rig)
    if checkpoint is not Checkpoint.OWN:
        rig.put_checkpoint(older)
    if checkpoint is Checkpoint.FRESH_AND_NO_COMMITS:
        rig.source.kill()
        rig.forget_commits()
    rig.revive(WHOLE_TOPIC if checkpoint is Checkpoint.FRESH_AND_NO_COMMITS else RECORDS_A_BATCH)
    return rig.finish()


# ---- udsource


def source_in_a_read(rig: Rig) -> None:
    """`kill -9` in the middle of a message that it sends."""
    rig.cut_in_a_read(lambda: rig.source.kill())


def source_before_the_ack(rig: Rig) -> None:
    """`kill -9` while a batch is read and not acked."""
    with rig.read_and_not_acked():
        rig.source.kill()


def source_around_the_ack(rig: Rig) -> None:
    """`kill -9` at a random moment about when a batch is acked."""
    with rig.read_and_not_acked():
        pass
    time.sleep(random.uniform(0.0, 1.0))
    rig.source.kill()


# ---- the driver


def driver_at(moment: Moment) -> Death:
    """By the hook in spark/pipeline/fault.py."""
    return lambda rig: rig.die_at(moment)


def driver_at_any_moment(rig: Rig) -> None:
    """`kill -9` of the driver's Python alone; its JVM finds out by itself."""
    rig.produce()
    time.sleep(random.uniform(0.0, 3.0))
    rig.driver.kill()


def both_in_a_read(rig: Rig) -> None:
    """udsource and the driver at once, in the middle of a message between them."""
    rig.cut_in_a_read(lambda: kill_at_once(rig.driver, rig.source))


def both_before_the_ack(rig: Rig) -> None:
    """udsource and the driver at once, behind the commit of a batch's rows."""
    with rig.read_and_not_acked():
        kill_at_once(rig.driver, rig.source)


# ---- what is around them


def kafka_before_the_ack(rig: Rig) -> None:
    """Kafka is stopped behind a batch's read, and the batch ends without it."""
    before = checkpointed(rig.checkpoint)
    with rig.read_and_not_acked():
        rig.kafka.broker.stop(signal.SIGTERM)
    wait_for(lambda: checkpointed(rig.checkpoint) != before, PATIENCE_SECONDS, rig.tails)


def kafka_in_a_read(rig: Rig) -> None:
    """Kafka is killed while a batch is read, and the read is cut, so that it has to be begun again without Kafka."""
    rig.cut_in_a_read(rig.kafka.kill)


def stream_in_a_read(rig: Rig) -> None:
    """Nothing dies but the connection, so each record is still read once; the tables alone would not show it."""
    before = rig.repeats
    rig.cut_in_a_read()
    rig.settle()
    assert rig.repeats == before, "records came twice in one batch"


# ---- a campaign of them


@dataclass
class Tally:
    """How often a case was gone through and what was wrong each time, summed up."""

    name: str
    death: Death
    checkpoint: Checkpoint = Checkpoint.OWN
    times: int = 0
    rows: int = 0
    """In the table at the last time."""
    lost: int = 0
    doubled: int = 0
    wrong: int = 0

    def go(self, rig: Rig) -> None:
        """Once more; fails if anything is wrong."""
        verdict = outlive(rig, self.death, self.checkpoint)
        self.times = self.times + 1
        self.rows = verdict.rows
        self.lost = self.lost + verdict.lost
        self.doubled = self.doubled + verdict.doubled
        self.wrong += verdict.wrong + verdict.coverage
        verdict.fail_if_wrong()


_NAMES = {
    Moment.DECODED: "driver, before the Iceberg commit",
    Moment.COMMITTING: "driver, in the Iceberg commit",
    Moment.ROWS_COMMITTED: "driver, behind the Iceberg commit",
    Moment.REPORTED: "driver, behind report and coverage",
}


def groups() -> list[tuple[int, list[Tally]]]:
    """The cases by the fault they stand for; before each group, one in how many of a campaign's kills it gets."""
    behind = driver_at(Moment.ROWS_COMMITTED)
    return [
        (
            1,
            [
                Tally("udsource, in the middle of a read", source_in_a_read),
                Tally("udsource, between read and ack", source_before_the_ack),
                Tally("udsource, about the ack", source_around_the_ack),
            ],
        ),
        (
            1,
            [
                *(Tally(name, driver_at(moment)) for moment, name in _NAMES.items()),
                Tally("driver, at any moment", driver_at_any_moment),
            ],
        ),
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
                Tally("fresh checkpoint, at the group's commits", both_before_the_ack, Checkpoint.FRESH),
                Tally("fresh checkpoint, no commits", behind, Checkpoint.FRESH_AND_NO_COMMITS),
            ],
        ),
        (
            5,
            [
                Tally("older checkpoint, behind the Iceberg commit", behind, Checkpoint.OLDER),
                Tally("older checkpoint, at any moment", driver_at_any_moment, Checkpoint.OLDER),
            ],
        ),
    ]
