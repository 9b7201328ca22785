"""``dexorder backup`` and ``dexorder restore``: the state of the local suite in one file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dexorder.cli import output
from dexorder.supervisor import backup as archives
from dexorder.supervisor.state import default_directory


def backup(directory: Path | None, archive: Path) -> None:
    """Write the archive; SuiteFailed while the suite runs."""
    source = (directory or default_directory()).absolute()
    _told("written", archives.backup(source, archive, _progress("packing")), archive)


def restore(archive: Path) -> None:
    """Bring the folder back to where it was."""
    _told("restored", archives.restore(archive, _progress("unpacking")), archive)


def _told(what: str, contents: archives.Contents, archive: Path) -> None:
    size = f"{contents.files} files, {contents.size_bytes / 1e6:,.1f} MB"
    output.stdout().print(f"{what}: {size} of {contents.directory} ({archive})", markup=False)


def _progress(what: str) -> Callable[[str, int], None]:
    err, seen = output.stderr(), [0, 0]

    def on_file(name: str, size: int) -> None:
        seen[0] += 1
        seen[1] += size
        if seen[0] % 500 == 0:
            err.print(f"{what}: {seen[0]:,} files, {seen[1] / 1e6:,.0f} MB", markup=False)

    return on_file
