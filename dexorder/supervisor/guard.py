"""Ends what a killed supervisor leaves behind: ``python guard.py``, its standard input a pipe from the supervisor.

The kernel ends the parts themselves (child.py); this one ends what the parts had started, such as Spark's JVM. It
reads ``+SESSION`` and ``-SESSION`` lines; when the pipe closes, it kills every process of the sessions still listed.
Each part leads a session of its own, so nothing else can be hit.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path


def session_members(session: int) -> list[int]:
    """Processes of a session that still run, zombies not counted; none on a system without /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state != "Z":
                found.append(int(entry.name))
    return found


def kill_session(session: int) -> int:
    """SIGKILL to every process of the session and to its first process group; how many processes were found."""
    members = session_members(session)
    for pid in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    return len(members)


def main() -> None:
    """Keep the list until the pipe closes, then kill what is on it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the supervisor ends this
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        (sessions.add if line[0] == "+" else sessions.discard)(session)
    for session in sessions:
        for _ in range(3):  # a process may be forking while the list is read
            if not kill_session(session):
                break


if __name__ == "__main__":
    main()
