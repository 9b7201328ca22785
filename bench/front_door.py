"""Front door: size of each installation, processor time of the client's import, time until the suite is ready.

    .venv/bin/python -m bench.front_door [sizes] [imports] [start]

Builds the wheel and installs each extra with the locked versions into an environment of its own, by uv and its cache;
packages that are not there are downloaded. Starts are those of this checkout, warm: jars and classes are on disk.
Prints Markdown. Without a name all parts are measured: about 5 minutes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.parts.cpu import cpu_seconds
from tests.newcomer.installed import build_wheel
from tests.paths import ROOT
from tests.rig import report
from tests.rig.report import Row, table
from tests.rig.suite import running_suite

EXTRAS = ("", "events", "gateway", "udsource", "ingestor", "lake", "relay", "spark", "driver", "suite")
AIM_MB, AIM_IMPORT_S, AIM_READY_S = 150, 0.4, 15
SHOWN_PACKAGES = 3
IMPORTS, STARTS = 5, 5
UV = str(ROOT / ".venv/bin/uv")
_IMPORT = "import time; from dexorder import Client; print(time.process_time())"


def install(folder: Path, wheel: Path, extra: str) -> Path:
    """Return a new environment with the wheel and one extra."""
    environment = folder / (extra or "base")
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, str(environment)], check=True)
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    options = ["--quiet", "--compile-bytecode", "--constraints", str(ROOT / "requirements/dev.txt")]
    python = str(environment / "bin/python")
    subprocess.run([UV, "pip", "install", *options, "--python", python, what], check=True)
    return environment


def megabytes(folder: Path) -> float:
    """Return the space on disk of a folder or file."""
    files = [folder, *folder.rglob("*")]
    return sum(each.lstat().st_blocks for each in files) * 512 / 1e6


def largest(environment: Path) -> str:
    """Return the largest packages of an environment as text."""
    (packages,) = (environment / "lib").glob("python*/site-packages")
    found = sorted(((megabytes(each), each.name) for each in packages.iterdir()), reverse=True)
    return ", ".join(f"{name} {size:.0f}" for size, name in found[:SHOWN_PACKAGES])


def sizes(folder: Path) -> str:
    """Return the table of installations."""
    wheel, rows = build_wheel(folder), []
    for extra in EXTRAS:
        environment = install(folder, wheel, extra)
        name = f"dexorder[{extra}]" if extra else "dexorder"
        aim = "" if extra else f"{AIM_MB} MB"
        rows.append(Row(name, f"{megabytes(environment):.0f} MB", f"largest: {largest(environment)}", "", aim))
        print(f"{name}: {rows[-1].ours}", file=sys.stderr, flush=True)
    return table(f"Space on disk; the wheel has {megabytes(wheel):.1f} MB", rows)


def imports(folder: Path) -> str:
    """Return the table of the client's import in an environment with nothing but the client."""
    environment = install(folder, build_wheel(folder), "")

    def seconds(code: str) -> float:
        command = [str(environment / "bin/python"), "-c", code]
        runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(IMPORTS)]
        return statistics.median(float(run.stdout) for run in runs)

    ours, bare = seconds(_IMPORT), seconds("import time; print(time.process_time())")
    row = Row("`from dexorder import Client`", f"{ours:.2f} s", f"Python alone {bare:.2f} s", "", f"{AIM_IMPORT_S} s")
    return table(f"Processor time of a new process, median of {IMPORTS}", [row])


def start(folder: Path) -> str:
    """Return the table of starts."""
    rows = []
    for name, options, aim in (
        ("`dexorder up`", (), f"{AIM_READY_S} s"),
        ("`--only gateway`", ("--only", "gateway"), ""),
    ):
        found: list[float] = []
        for number in range(STARTS):
            began_s = time.monotonic()
            with running_suite(folder / f"{len(options)}-{number}", *options) as suite:
                found.append(time.monotonic() - began_s)
                spark = f"Spark's processor time {cpu_seconds(suite, 'spark'):.1f} s" if not options else ""
            print(f"{name}: {found[-1]:.1f} s", file=sys.stderr, flush=True)
        rows.append(Row(f"{name} is ready", report.median_and_worst(found), spark, "", aim))
    return table(f"Start, warm, {STARTS} times", rows)


PARTS: dict[str, Callable[[Path], str]] = {"sizes": sizes, "imports": imports, "start": start}


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args().parts
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    print(report.heading("Front door"), flush=True)
    for name, measure in PARTS.items():
        if not chosen or name in chosen:
            with tempfile.TemporaryDirectory() as folder:
                print(measure(Path(folder)), flush=True)


if __name__ == "__main__":
    main()
