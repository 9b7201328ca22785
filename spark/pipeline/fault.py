"""A crash on purpose, at the moments that matter most, for crash tests. Only ``DEXORDER_SPARK_FAULT`` sets it.

    die_before_commit:N       the batch is decoded, none of its rows is written
    die_during_commit:N       its files and the table's next metadata are written, the catalog is being told of them
    die_before_checkpoint:N   behind the Iceberg commit, before report, coverage and Spark's commit log
    die_after_report:N        behind report and coverage, before Spark's commit log
    ...:N:FUSE                only batches while the file FUSE is there count; it is removed before the kill
    A,B                       several of these, with fuses that have no comma in their names

N counts this process's batches that wrote rows, from 1. The process and its JVM get SIGKILL, nothing else does. With a
fuse a running suite can be told when to die, and its next driver lives.

``die_during_commit`` watches the metadata of a table in local files. While another process keeps the catalog locked, it
hits the moment exactly; else the catalog may be told just before the kill.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

import structlog

log = structlog.get_logger(__name__)
_ONE = r"die_(before_commit|during_commit|before_checkpoint|after_report):[1-9][0-9]*(:[^,]+)?"
FAULT_PATTERN = rf"^(|{_ONE}(,{_ONE})*)$"
_LOOK_SECONDS = 0.001


class Moment(StrEnum):
    """Where in a batch."""

    DECODED = "die_before_commit"
    COMMITTING = "die_during_commit"
    ROWS_COMMITTED = "die_before_checkpoint"
    REPORTED = "die_after_report"


@dataclass
class Charge:
    """Goes off when the ``number``-th batch with rows passes ``moment``."""

    moment: Moment
    number: int
    fuse: Path | None = None
    _passed: int = field(default=0, init=False)

    @staticmethod
    def parse(text: str) -> Charge:
        """Read one of the faults of a text of ``FAULT_PATTERN``."""
        moment, number, *fuse = text.split(":", 2)
        return Charge(Moment(moment), int(number), Path(fuse[0]) if fuse else None)

    def counts(self, moment: Moment) -> bool:
        """Count a batch that passes the moment; whether it is the one to die."""
        if moment is not self.moment or not (self.fuse is None or self.fuse.exists()):
            return False
        self._passed += 1
        return self._passed == self.number


class Fault:
    """Kills, by calling ``kill``, when one of the charges goes off."""

    def __init__(self, charges: Sequence[Charge], kill: Callable[[], None]) -> None:
        self._charges = charges
        self._kill = kill

    @staticmethod
    def parse(text: str, kill: Callable[[], None]) -> Fault | None:
        """Read a text of ``FAULT_PATTERN``; None for an empty one."""
        if not text:
            return None
        log.warning("DEXORDER_SPARK_FAULT is set: this driver will kill itself", fault=text)
        return Fault([Charge.parse(one) for one in text.split(",")], kill)

    def passed(self, moment: Moment) -> None:
        """A batch that has rows is there."""
        for charge in self._charges:
            if charge.counts(moment):
                self._go_off(charge)

    def commit_begins(self, location: str) -> None:
        """A batch's rows are about to be committed to the table at this URI; returns at once."""
        for charge in self._charges:
            if charge.counts(Moment.COMMITTING):
                folder = Path(unquote(urlsplit(location).path)) / "metadata"
                there = _metadata_files(folder)
                threading.Thread(target=self._go_off_behind, args=(charge, folder, there), daemon=True).start()

    def _go_off_behind(self, charge: Charge, folder: Path, there: set[Path]) -> None:
        while _metadata_files(folder) <= there:
            time.sleep(_LOOK_SECONDS)
        self._go_off(charge)

    def _go_off(self, charge: Charge) -> None:
        if charge.fuse is not None:
            charge.fuse.unlink()
        log.warning("DEXORDER_SPARK_FAULT: killing this driver now", moment=charge.moment.value, number=charge.number)
        self._kill()


def _metadata_files(folder: Path) -> set[Path]:
    return set(folder.glob("*.metadata.json"))


def kill_driver(jvm_pid: int) -> None:
    """SIGKILL for the driver's JVM and for this process."""
    os.kill(jvm_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
