"""Runs on disk, from before their first request is submitted until their last result is shown: one file each."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dexorder.errors import RunUnknown
from dexorder.runs import Run, run_from
from services.common.config import state_folder

KEPT_DAYS = 30
"""A run nobody has gone on with for so long is dropped when another one is recorded."""


@dataclass(frozen=True)
class RunStore:
    """Where runs are recorded: in ``file`` if one is given, else one file each below the user's state folder."""

    file: Path | None = None

    def save(self, run: Run) -> None:
        """Record it, surviving a crash from here on; drops what nobody has gone on with.

        Raises:
            OSError: The place can't be written.
        """
        path = self._path(run.run_id)
        if self.file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._prune(path.parent)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        with fresh.open("w") as file:
            json.dump(run.as_json(), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def load(self, run_id: str = "") -> Run:
        """That run, or the one recorded last.

        Raises:
            RunUnknown: There is none to go on with, or it can't be read.
        """
        path = self._path(run_id) if run_id or self.file else self._last()
        try:
            return run_from(json.loads(path.read_text()))
        except FileNotFoundError:
            raise RunUnknown(f"no run {run_id or path} is recorded; finished ones are forgotten") from None
        except (OSError, ValueError) as error:
            raise RunUnknown(f"the run in {path} can't be read: {error}") from None

    def forget(self, run: Run) -> None:
        """It is done. What can't be removed stays, until it is too old."""
        with suppress(OSError):
            self._path(run.run_id).unlink(missing_ok=True)

    def resume_command(self, run: Run) -> str:
        """What to type to go on with it."""
        return f"dexorder history --resume {f'--state {self.file}' if self.file else run.run_id}"

    def _path(self, run_id: str) -> Path:
        return self.file or _folder() / f"{quote(run_id, safe='')}.json"

    def _last(self) -> Path:
        found = list(_folder().glob("*.json"))
        if not found:
            raise RunUnknown("no unfinished run is recorded")
        return max(found, key=lambda path: path.stat().st_mtime_ns)

    def _prune(self, folder: Path) -> None:
        oldest = time.time() - KEPT_DAYS * 86_400
        for path in folder.glob("*.json"):
            if path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)


def _folder() -> Path:
    return state_folder() / "runs"
