"""A crash on purpose, at the two moments that matter most, for crash tests. Only ``DEXORDER_SPARK_FAULT`` sets it.

    die_before_checkpoint:N   behind the Iceberg commit, before report, coverage and Spark's commit log
    die_after_report:N        behind report and coverage, before Spark's commit log

N counts this process's batches that wrote rows, from 1. The process and its JVM get SIGKILL, nothing else does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)
FAULT_PATTERN = r"^(|die_(before_checkpoint|after_report):[1-9][0-9]*)$"


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
    _passed: int = field(default=0, init=False)

    @staticmethod
    def parse(text: str, kill: Callable[[], None]) -> Fault | None:
        """Read a text of ``FAULT_PATTERN``; None for an empty one."""
        if not text:
            return None
        moment, _, number = text.partition(":")
        log.warning("DEXORDER_SPARK_FAULT is set: this driver will kill itself", fault=text)
        return Fault(Moment(moment), int(number), kill)

    def passed(self, moment: Moment) -> None:
        """A batch that wrote rows is there."""
        if moment is self.moment:
            self._passed += 1
            if self._passed == self.number:
                log.warning("DEXORDER_SPARK_FAULT: killing this driver now", moment=moment.value, number=self.number)
                self.kill()


def kill_driver(jvm_pid: int) -> None:
    """SIGKILL for the driver's JVM and for this process."""
    os.kill(jvm_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
