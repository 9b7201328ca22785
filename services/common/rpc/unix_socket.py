"""Unix sockets that are files."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

_ANSWER_SECONDS = 1.0


def refuse_if_served(path: Path) -> None:
    """Before a server binds the path: gRPC takes it from whoever has it, a living process too.

    What a killed process left behind is nobody's and is left to gRPC.

    Raises:
        OSError: Somebody listens there.
    """
    with socket.socket(socket.AF_UNIX) as probe, suppress(TimeoutError):  # too busy to answer is alive
        probe.settimeout(_ANSWER_SECONDS)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            return
        except OSError as error:
            if error.errno is None:
                return  # the name is too long, as bind will say
            raise
    raise OSError(f"can't listen on unix:{path}: another process does")
