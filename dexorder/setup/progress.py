"""Progress of a download of jars, read from the files that Maven or Ivy writes: neither reports bytes to a pipe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dexorder.setup.manifest import LockedJar

INTERVAL_SECONDS = 3.0
_UNFINISHED = (".part", ".tmp")
_NAMED = 2


@contextmanager
def reported(name: str, jars: Sequence[LockedJar], folder: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Report every three seconds, from another thread, how much of the jars is in the resolver's folder."""
    if not jars:
        yield
        return
    with repeated(lambda: report(f"jars {name}: {describe(jars, [arrived(jar, folder) for jar in jars])}")):
        yield


@contextmanager
def repeated(say: Callable[[], None], interval_s: float = INTERVAL_SECONDS) -> Iterator[None]:
    """Call ``say`` every three seconds, from another thread, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(interval_s):
            say()

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def arrived(jar: LockedJar, folder: Path) -> int:
    """Return the number of bytes of a jar that are on disk, including unfinished files."""
    group, artifact, version = jar.coordinate.split(":")[:3]
    maven = folder.joinpath(*group.split("."), artifact, version)
    found = 0
    for place in (maven, *(folder / group / artifact).glob("*s")):  # Ivy's are jars and bundles
        for path in place.glob(f"{jar.file_name}*"):
            rest = path.name.removeprefix(jar.file_name)
            if not rest or rest.endswith(_UNFINISHED):
                found = max(found, _size(path))
    return min(found, jar.size_bytes)


def describe(jars: Sequence[LockedJar], present: Sequence[int]) -> str:
    """Return the bytes of all jars and of the arriving ones, given the bytes that are present of each. Pure."""
    total = sum(jar.size_bytes for jar in jars)
    if not any(present):
        return f"waiting for the first of {_megabytes(total)} MB"
    if sum(present) == total:
        return f"all {_megabytes(total)} MB are here, and are checked"
    text = f"{_megabytes(sum(present))} of {_megabytes(total)} MB"
    arriving = [(jar, size) for jar, size in zip(jars, present, strict=True) if 0 < size < jar.size_bytes]
    largest = sorted(arriving, key=lambda each: each[0].size_bytes, reverse=True)[:_NAMED]
    parts = (f"{jar.file_name} {_megabytes(size)} of {_megabytes(jar.size_bytes)} MB" for jar, size in largest)
    return "; ".join((text, *parts))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has just been renamed
        return 0


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"
