"""Files of the triggers' journal: the steps between which a crash may come, each of which leaves a known state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Folder of one process. After a crash, data that was not synced may be lost or incomplete."""

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""

    def read(self, name: str) -> bytes:
        """Return the content of a file."""

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, which is created if necessary."""

    def truncate(self, name: str, size: int) -> None:
        """Keep only the first bytes of a file, which is created if necessary."""

    def sync(self, name: str) -> None:
        """Put the content of a file on disk."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync_names(self) -> None:
        """Put the names of the files on disk."""


class FolderFiles:
    """Files of a folder, which is created if necessary."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """See `Files`."""
        return sorted(each.name for each in self._folder.iterdir())

    def read(self, name: str) -> bytes:
        """See `Files`."""
        return (self._folder / name).read_bytes()

    def append(self, name: str, data: bytes) -> None:
        """See `Files`."""
        with (self._folder / name).open("ab") as file:
            file.write(data)

    def truncate(self, name: str, size: int) -> None:
        """See `Files`."""
        with (self._folder / name).open("ab") as file:
            file.truncate(size)

    def sync(self, name: str) -> None:
        """See `Files`."""
        _sync(self._folder / name, os.O_RDWR)

    def rename(self, name: str, to: str) -> None:
        """See `Files`."""
        (self._folder / name).rename(self._folder / to)

    def remove(self, name: str) -> None:
        """See `Files`."""
        (self._folder / name).unlink()

    def sync_names(self) -> None:
        """See `Files`."""
        _sync(self._folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
