"""One process a database file: two would both do what it says."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.common.config import BadSettings


@contextmanager
def sole_owner(db: Path, *, variable: str, owner: str, harm: str) -> Iterator[None]:
    """Hold a lock beside the database file; the kernel lets go of it when the process ends, however it ends.

    Args:
        variable: The setting that names the file.
        owner: What the process is, for example "relay".
        harm: What two of them would both do.

    Raises:
        BadSettings: Another process holds it; says which.
    """
    db.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(db.with_name(f"{db.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(handle, f"{variable}: {db} is in use by another {owner}", f"two would both {harm}")
        yield
    finally:
        os.close(handle)


def _take(handle: int, taken: str, harm: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        raise BadSettings(f"{taken}, process {holder}; {harm}, so stop that one first") from None
    os.truncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
