"""Files of a warehouse in a local folder, which are on disk with their names when they are closed.

The database of the catalog is synced with each commit. The files that the commit names are not: pyiceberg and Iceberg's
Java leave that to the operating system, which writes them up to half a minute later. A cut of the power within this
time would leave a catalog that names files which are empty or missing. So the writer of a file syncs it before a commit
can name it. An object store keeps every file that it has confirmed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem

_SCHEME = "file:"


def is_local(properties: Mapping[str, str]) -> bool:
    """Return whether a catalog with these properties has its tables in a local folder."""
    return properties.get("type") == "sql" and properties.get("warehouse", "").startswith(_SCHEME)


def with_synced_files(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which pyiceberg syncs the files of a local warehouse; others unchanged."""
    synced = f"{SyncedFileIO.__module__}.{SyncedFileIO.__qualname__}"
    return {**({PY_IO_IMPL: synced} if is_local(properties) else {}), **properties}


def sync_file(path: Path) -> None:
    """Have a closed file on disk, with its name and the names of the folders above it."""
    folder = path.absolute().parent
    _sync(path)
    _sync(folder)
    _sync_name(folder)


@lru_cache(maxsize=10_000)
def _sync_name(folder: Path) -> None:
    parent = folder.parent
    if parent != folder and os.access(parent, os.R_OK):
        _sync(parent)
        _sync_name(parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _SyncedStream(pa.OSFile):
    """Stream into a file that is synced when it is closed."""

    def __init__(self, path: str, _mode: str) -> None:
        self._path = Path(path)  # Arrow has opened it

    def close(self) -> None:
        if not self.closed:
            super().close()
            sync_file(self._path)


class _SyncedFiles(PyArrowLocalFileSystem):
    def open_output_stream(self, path: str, *_: Any, **__: Any) -> pa.NativeFile:
        folder = Path(path).parent
        if not folder.is_dir():
            _sync_name.cache_clear()  # it may have been there before
            folder.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path, "wb")


class SyncedFileIO(PyArrowFileIO):
    """Files as pyiceberg's, of which the local ones are synced when they are closed."""

    def _initialize_local_fs(self) -> _SyncedFiles:
        return _SyncedFiles()
