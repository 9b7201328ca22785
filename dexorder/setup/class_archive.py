"""Archives of loaded Java classes, which make later starts of Spark's driver and of Kafka's broker faster.

Most of such a start goes into finding, parsing and verifying the classes of the jars. The JDK's class-data sharing
(JEP 350) saves them to a file that fits one Java and one class path. Java silently ignores a file that does not fit,
so the archive is optional.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from dexorder.setup.config import SetupError
from dexorder.setup.java import Java, find_java
from dexorder.setup.progress import repeated

TIMEOUT_S = 600


def archive_path(program: str, java: Java) -> Path:
    """Return the path of a program's archive for one Java in this Python environment; the file may not exist."""
    return Path(sys.prefix) / "share" / "dexorder" / f"{program}-java-{java.version}.jsa"


def spark_program() -> str:
    """Return the name of Spark's driver in its archive's path."""
    return f"spark-driver-{version('pyspark')}"


def kafka_program(jars: Path) -> str:
    """Return the name of Kafka's broker in its archive's path."""
    return next((jar.stem for jar in jars.glob("kafka_*.jar")), "kafka")


def options_with(archive: Path) -> list[str]:
    """Return the Java options that use the archive; none if it does not exist."""
    if not archive.is_file() or not options_possible(archive):
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def options_possible(archive: Path) -> bool:
    """Return whether the path can be in Java's options: Spark splits them at blanks."""
    return " " not in str(archive)


def options_to_write(archive: Path) -> list[str]:
    """Return the Java options that write the archive when Java ends."""
    return [f"-XX:ArchiveClassesAtExit={archive}"]


def ensure_once(archive: Path, module: str, report: Callable[[str], None]) -> None:
    """Before a program's start, write its archive if that is possible, with a report of the steps.

    A failure is kept in a file beside the archive, since the next attempt would take as long.
    """
    failed = archive.with_suffix(".failed")
    if archive.is_file() or failed.is_file() or not options_possible(archive) or not _writable(archive.parent):
        return
    name = archive.stem.partition("-java-")[0]
    report(f"classes of {name}: loading and archiving them (once; later starts take half the time) ...")
    with repeated(lambda: report(f"classes of {name}: still loading and archiving them")):
        outcome = ensure(archive, module)
    report(f"classes of {name}: {outcome}")
    if not archive.is_file():
        failed.write_text(outcome)


def _writable(folder: Path) -> bool:
    nearest = next(each for each in (folder, *folder.parents) if each.is_dir())
    return os.access(nearest, os.W_OK)


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
