"""Archives of loaded Java classes, which make later starts of Spark's driver and of Kafka's broker faster.

Most of such a start goes into finding, parsing and verifying the classes of the jars. The JDK's class-data sharing
(JEP 350) saves them to a file that fits one Java and one class path. Java silently ignores a file that does not fit, so
nothing depends on it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dexorder.setup.config import SetupError
from dexorder.setup.java import Java, find_java

TIMEOUT_S = 600


def archive_path(program: str, java: Java) -> Path:
    """Return the path of a program's archive for one Java in this Python environment; the file may not exist."""
    return Path(sys.prefix) / "share" / "dexorder" / f"{program}-java-{java.version}.jsa"


def options_with(archive: Path) -> list[str]:
    """Return the Java options that use the archive; none if it does not exist."""
    if not archive.is_file() or " " in str(archive):  # Spark splits its options at blanks
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def options_to_write(archive: Path) -> list[str]:
    """Return the Java options that write the archive when Java ends."""
    return [f"-XX:ArchiveClassesAtExit={archive}"]


def main(module: str, program: str, run: Callable[[Path], None]) -> int:
    """Be the command ``python -m module``: write the program's archive if it does not exist.

    With an argument, ``run`` the program so that it writes its archive to that path. A Java that cannot write one is
    reported, with exit status 0.
    """
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return 0
    started = time.monotonic()
    try:
        archive = archive_path(program, find_java())
    except SetupError as error:
        print(f"{module}: {error}", file=sys.stderr)
        return 1
    outcome = ensure(archive, module)
    print(f"[{time.monotonic() - started:5.1f} s] classes of {program}: {outcome}", flush=True)
    return 0


def ensure(archive: Path, module: str) -> str:
    """Write the archive if it does not exist, with ``python -m module PATH``; return the outcome in a few words."""
    if archive.is_file():
        return "archived"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".new-") as scratch:
        new = Path(scratch) / archive.name
        try:
            # In another process, as Java writes the archive when it ends.
            command = [sys.executable, "-m", module, str(new)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not archived within {TIMEOUT_S} s; starts take longer"
        if not new.is_file():
            lines = done.stderr.strip().splitlines() or ["Java wrote nothing"]
            return f"not archived; starts take longer: {lines[-1][:200]}"
        new.replace(archive)
    return f"archived, {archive.stat().st_size >> 20} MiB"
