"""A crash on purpose, at the two moments that matter most, for crash tests. Only ``DEXORDER_SPARK_FAULT`` sets it.

    die_before_checkpoint:N   behind the Iceberg commit, before report, coverage and Spark's commit log
    die_after_report:N        behind report and coverage, before Spark's commit log
    ...:N:FUSE                only batches while the file FUSE is there count; it is removed before the kill

N counts this process's batches that wrote rows, from 1. The process and its JVM get SIGKILL, nothing else does. With a
fuse a running suite can be told when to die, and its next driver lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)
FAULT_PATTERN = r"^(|die_(before_checkpoint|after_report):[1-9][0-9]*(:.+)?)$"


class Moment(StrEnum):
    """Where in a batch."""

    ROWS_COMMITTED = "die_before_checkpoint"
    REPORTED = "die_after_report"


@dataclass
class Fault:
    """Kills at the ``number``-th time that a batch with rows passes ``moment``."""

    moment: Moment
    number: int
    kill: Callable[[], None]
    fuse: Path | None = None
    _passed: int = field(default=0, init=False)

    @staticmethod
    def parse(text: str, kill: Callable[[], None]) -> Fault | None:
        """Read a text of ``FAULT_PATTERN``; None for an empty one."""
        if not text:
            return None
        moment, number, *fuse = text.split(":", 2)
        log.warning("DEXORDER_SPARK_FAULT is set: this driver will kill itself", fault=text)
        return Fault(Moment(moment), int(number), kill, Path(fuse[0]) if fuse else None)

    def passed(self, moment: Moment) -> None:
        """A batch that wrote rows is there."""
        if moment is self.moment and (self.fuse is None or self.fuse.exists()):
            self._passed += 1
            if self._passed == self.number:
                if self.fuse is not None:
                    self.fuse.unlink()
                log.warning("DEXORDER_SPARK_FAULT: killing this driver now", moment=moment.value, number=self.number)
                self.kill()


def kill_driver(jvm_pid: int) -> None:
    """SIGKILL for the driver's JVM and for this process."""
    os.kill(jvm_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
