"""Lock files for state that only one process may use; the kernel releases a lock when its process ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dexorder_common.config import BadSettings


class Locked(Exception):
    """Another process holds the lock; ``holder`` is its id as text, or "unknown"."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"locked by process {holder}")
        self.holder = holder


def take_lock(path: Path) -> int:
    """Lock a file, write our process id into it, and return the open file; closing it releases the lock.

    Raises:
        Locked: Another process holds the lock.
        OSError: The file can't be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        raise Locked(holder) from None
    os.truncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle


@contextmanager
def sole_owner(db: Path, *, variable: str, owner: str, harm: str) -> Iterator[None]:
    """Hold a lock beside a database file, so that one process at a time acts on its content.

    Args:
        variable: The setting that names the file.
        owner: The kind of process, for example "relay".
        harm: The work that two of them would both do.

    Raises:
        BadSettings: Another process holds the lock; the message names it.
    """
    db.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = take_lock(db.with_name(f"{db.name}.lock"))
    except Locked as locked:
        raise BadSettings(
            f"{variable}: {db} is in use by another {owner}, process {locked.holder}; two would both {harm}, "
            "so stop that one first"
        ) from None
    try:
        yield
    finally:
        os.close(handle)
