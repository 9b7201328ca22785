"""Two relays on one database file: the second is refused with a message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.unit.services.relay.harness import environment, suite


async def test_second_relay_on_the_same_file_is_refused_with_one_sentence(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.queued("r", 0, 10)
        second = subprocess.run(  # noqa: ASYNC221 - it ends by itself, and nothing else has to go on meanwhile
            [sys.executable, "-m", "dexorder_relay"],
            cwd=ROOT,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert second.returncode == 1 and second.stdout == ""
        assert second.stderr == (
            f"DEXORDER_RELAY_DB: {tmp_path / 'relay.db'} is in use by another relay, process {os.getpid()}; "
            "two would both dispatch its jobs, so stop that one first\n"
        )
        assert (await s.record("r")).progress.jobs == 1
