"""Command that runs another one in a terminal and presses Ctrl-C once a text was shown, for commands without an end.

``python -m tests.documentation.interrupted TEXT COMMAND...``
"""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios

ROWS, COLUMNS = 40, 140
ENDS = (0, 130, -signal.SIGINT)


def main(text: str, *command: str) -> int:
    """Return 0 if the text was shown, and the command ended as after Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (ROWS, COLUMNS))
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "xterm"}, start_new_session=True
    )
    os.close(theirs)
    shown, seen = b"", False
    while data := _read(ours):
        shown += data
        if not seen and text.encode() in shown:
            seen = True
            process.send_signal(signal.SIGINT)
    ended = process.wait()
    print(shown.decode(errors="replace").replace("\r\n", "\n"))
    if seen and ended in ENDS:
        return 0
    print(f"ended with {ended}")
    return 1


def _read(terminal: int) -> bytes:
    """Return what was written to the terminal; nothing once its last user has closed it."""
    try:
        return os.read(terminal, 65_536)
    except OSError:
        return b""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
