"""``python child.py PARENT COMMAND...`` becomes COMMAND, which the kernel kills when PARENT dies. Linux; else plain.

Run as a file, not as a module, with ``-I -S``: it must start in milliseconds. The kernel's promise outlives ``exec``.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, make sure that the parent still lives, become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        # SIGKILL, since a part that hangs in its own SIGTERM would be the orphan; every part bears a kill.
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the promise was made
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
