"""Files that are replaced whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def replace_text(path: Path, text: str, *, synced: bool = False) -> None:
    """Write a text in UTF-8 beside ``path`` and rename it to ``path``.

    Processes that write the same file at once do not disturb each other; the last rename wins.

    Args:
        synced: Have the content on disk before the rename, so that a cut of the power leaves no empty file.

    Raises:
        OSError: The folder does not exist or can't be written, or the disk is full; ``path`` is unchanged.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
