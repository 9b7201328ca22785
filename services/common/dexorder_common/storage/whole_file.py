"""Files that are replaced whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replaced(path: Path, *, synced: bool = False) -> Iterator[IO[bytes]]:
    """Open a file beside ``path`` that is renamed to ``path`` when the block succeeds, and removed when it fails.

    Processes that write the same file at once do not disturb each other; the last rename wins.

    Args:
        synced: Have the content on disk before the rename, so that a cut of the power leaves no empty file.

    Raises:
        OSError: The folder does not exist or can't be written, or the disk is full; ``path`` is unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as stream:
            yield stream
            if synced:
                stream.flush()
                os.fsync(stream.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def replace_text(path: Path, text: str, *, synced: bool = False) -> None:
    """Replace a file by a text in UTF-8; see `replaced`."""
    with replaced(path, synced=synced) as stream:
        stream.write(text.encode())
