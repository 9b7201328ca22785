"""Deliberate crashes at the critical points of a batch, for crash tests. Only ``DEXORDER_SPARK_FAULT`` enables them.

    die_before_commit:N       the batch is decoded, its rows are not committed
    die_during_commit:N       its files and the table's next metadata are written, the catalog is being updated
    die_before_report:N       after the commit, before the report
    die_after_report:N        after the report, before the ack
    die_before_journal:N      in the triggers' process: a batch is evaluated, its journal is not written
    die_after_journal:N       its journal is written, its events are not reported
    die_during_publish:N      the relay has the N-th part of a report
    ...:N:FUSE                counts only batches while the file FUSE exists; it is removed before the kill
    A,B                       several faults; a fuse's name must not contain a comma

N counts this process's batches with rows, from 1. Only the process and its JVM get SIGKILL. A fuse makes a running
suite die at a chosen time, and its next driver survive.

``die_during_commit`` watches the metadata of a table in local files. It is exact while another process keeps the
catalog locked; else the catalog may be updated just before the kill.
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
_LOOK_SECONDS = 0.001


class Moment(StrEnum):
    """Point of a batch."""

    DECODED = "die_before_commit"
    COMMITTING = "die_during_commit"
    ROWS_COMMITTED = "die_before_report"
    REPORTED = "die_after_report"
    EVALUATED = "die_before_journal"
    JOURNALED = "die_after_journal"
    PUBLISHING = "die_during_publish"


@dataclass
class Charge:
    """A kill when the ``number``-th batch with rows passes ``moment``."""

    moment: Moment
    number: int
    fuse: Path | None = None
    _passed: int = field(default=0, init=False)

    @staticmethod
    def parse(text: str) -> Charge:
        """Parse one fault of a text that matches the setting's pattern."""
        moment, number, *fuse = text.split(":", 2)
        return Charge(Moment(moment), int(number), Path(fuse[0]) if fuse else None)

    def counts(self, moment: Moment) -> bool:
        """Count a batch that passes ``moment``; return whether it is the batch to die in."""
        if moment is not self.moment or not (self.fuse is None or self.fuse.exists()):
            return False
        self._passed += 1
        return self._passed == self.number


class Fault:
    """Set of charges; calls ``kill`` when one goes off."""

    def __init__(self, charges: Sequence[Charge], kill: Callable[[], None]) -> None:
        self._charges = charges
        self._kill = kill

    @staticmethod
    def parse(text: str, kill: Callable[[], None]) -> Fault | None:
        """Parse a text that matches the setting's pattern; return None for an empty one."""
        if not text:
            return None
        log.warning("DEXORDER_SPARK_FAULT is set: this driver will kill itself", fault=text)
        return Fault([Charge.parse(one) for one in text.split(",")], kill)

    def passed(self, moment: Moment) -> None:
        """Handle that a batch with rows has reached ``moment``."""
        for charge in self._charges:
            if charge.counts(moment):
                self._go_off(charge)

    def commit_begins(self, location: str) -> None:
        """Handle that rows are about to be committed to the table at this URI; return immediately."""
        for charge in self._charges:
            if charge.counts(Moment.COMMITTING):
                folder = Path(unquote(urlsplit(location).path)) / "metadata"
                present = _metadata_files(folder)
                threading.Thread(target=self._go_off_after_write, args=(charge, folder, present), daemon=True).start()

    def _go_off_after_write(self, charge: Charge, folder: Path, present: set[Path]) -> None:
        while _metadata_files(folder) <= present:
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
    """Send SIGKILL to the driver's JVM and to this process."""
    os.kill(jvm_pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
