"""A relay process that starts in a tenth of a second, for campaigns with a thousand restarts.

Python's forkserver has imported the relay's modules; each process is a fork of it that runs the relay's main.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dexorder_relay.__main__", "pyiceberg.catalog.sql", "tests.nightly.relay_life"])


def start(environment: Mapping[str, str], log: Path) -> multiprocessing.process.BaseProcess:
    """Start a relay with these variables added to the environment; ``kill`` of the result is SIGKILL."""
    process = _CONTEXT.Process(target=_live, args=(dict(environment), str(log)), daemon=True)
    process.start()
    return process


def _live(environment: dict[str, str], log: str) -> None:
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(environment)
    from dexorder_relay.__main__ import main

    main()
