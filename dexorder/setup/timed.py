"""Run a silent command of the Makefile and print a line with the elapsed time every three seconds while it runs.

    python3 -I dexorder/setup/timed.py "packages: installing" uv pip sync --quiet requirements.txt

The first line appears after one second, so a command that has nothing to do prints nothing. The exit status is the
command's. Imports only the standard library, because it runs before the packages are installed; ``-I`` keeps the
modules of this folder out of the path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

FIRST_SECONDS = 1.0
INTERVAL_SECONDS = 3.0


def line(began_s: float, now_s: float, text: str) -> str:
    """Return a line like the ones of the suite's start: ``[  3.0 s] text``."""
    return f"[{now_s - began_s:5.1f} s] {text}"


def run(label: str, command: list[str], *, first_s: float = FIRST_SECONDS, interval_s: float = INTERVAL_SECONDS) -> int:
    """Run a command with the progress lines; return its exit status, as a shell does after a signal."""
    began_s, shown = time.monotonic(), False
    process = subprocess.Popen(command)
    wait_s = first_s
    while True:
        try:
            status = process.wait(wait_s)
            break
        except subprocess.TimeoutExpired:
            print(line(began_s, time.monotonic(), f"{label} ..."), flush=True)
            shown, wait_s = True, interval_s
        except KeyboardInterrupt:
            wait_s = interval_s  # the command has the signal too, and ends by itself
    if shown:
        print(line(began_s, time.monotonic(), f"{label}: {'failed' if status else 'done'}"), flush=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    seconds = float(os.environ.get("DEXORDER_TIMED_SECONDS", INTERVAL_SECONDS))  # shorter in tests
    sys.exit(run(sys.argv[1], sys.argv[2:], first_s=min(FIRST_SECONDS, seconds), interval_s=seconds))
