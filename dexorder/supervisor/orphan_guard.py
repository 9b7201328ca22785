"""Protection against processes that outlive a killed supervisor, run as a file: ``python -I -S orphan_guard.py ...``.

``exec PARENT COMMAND...``  becomes COMMAND, which the kernel kills when PARENT dies (on Linux only). The kernel keeps
                            that promise across ``exec``, for the part itself but not for its children.
``watch``                   kills the parts' children, such as Spark's JVM: it reads ``+SESSION`` and ``-SESSION`` lines
                            from a pipe, and when the pipe closes it kills all processes of the sessions that are still
                            listed. Each part leads its own session, so no other process is hit.

``exec`` must start in milliseconds, so it loads no module that the interpreter has not loaded already.
"""

import os
import signal
import sys

COMMAND = (sys.executable, "-I", "-S", __file__)
_PR_SET_PDEATHSIG = 1


def guarded() -> tuple[str, ...]:
    """Return the words before a command that must not outlive this process; it is started from the main thread."""
    return (*COMMAND, "exec", str(os.getpid()))


def session_members(session: int) -> list[int]:
    """Return the running processes of a session without zombies; none on a system without /proc."""
    from contextlib import suppress
    from pathlib import Path

    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            state, _, _, sid = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state != "Z":
                found.append(int(entry.name))
    return found


def kill_session(session: int) -> int:
    """Send SIGKILL to every process of the session and to its first process group; return how many were found."""
    from contextlib import suppress

    members = session_members(session)
    for pid in members:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    return len(members)


def become(parent: int, command: list[str]) -> None:
    """Ask the kernel for the signal, check that the parent is still alive, and become the command."""
    if sys.platform == "linux":
        import ctypes

        # SIGKILL, since a part that hangs in its own SIGTERM would be the orphan; every part survives a kill.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


def watch() -> None:
    """Keep the list of sessions until the pipe closes, then kill the processes of the listed ones."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the end of the supervisor ends this process
    sessions: set[int] = set()
    for line in sys.stdin:
        session = int(line[1:])
        (sessions.add if line[0] == "+" else sessions.discard)(session)
    for session in sessions:
        for _ in range(3):  # a process may fork while the list is read
            if not kill_session(session):
                break


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        become(int(sys.argv[2]), sys.argv[3:])
    watch()
