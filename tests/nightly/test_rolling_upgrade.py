"""Rolling upgrade under load: the parts of an older commit are replaced by those of this one, in the documented order.

DEXORDER_UPGRADE_FROM=COMMIT; by default 150 commits back. Backfills, records through the gateway and user events go on
all the time. No call of them fails, nothing is lost, and nothing is doubled.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.nightly.backfills import Backfills
from tests.nightly.mesh_load import Events, Records
from tests.nightly.upgraded_suite import ORDER, turn, upgraded_suite
from tests.nightly.watching import Listener
from tests.paths import ROOT
from tests.rig.report import print_campaign

FROM = os.environ.get("DEXORDER_UPGRADE_FROM", "HEAD~150")
CANDLES = 5_000
PAUSE_SECONDS = 5.0
pytestmark = [pytest.mark.nightly, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1_500)]


def commit(name: str) -> str:
    """Return the short hash of a commit; empty if this clone does not have it."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "--verify", "-q", f"{name}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


def test_a_rolling_upgrade_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    if not (old := commit(FROM)):
        pytest.skip(f"this clone has no commit {FROM}")
    started_s, took = time.monotonic(), {}
    with (
        upgraded_suite(tmp_path, old) as (suite, link),
        Listener(suite, "upgrade") as listener,
        Records(suite) as records,
        Events(suite) as events,
    ):
        with Backfills(suite, "upgrade", candles=CANDLES) as backfills:
            time.sleep(PAUSE_SECONDS)
            assert {suite.tree_of(part) for part in ORDER} == {suite.tree_of("relay")}
            assert suite.tree_of("relay").startswith(str(tmp_path / "old"))
            turn(link)
            for part in ORDER:
                began_s = time.monotonic()
                suite.upgrade(part)
                took[part] = time.monotonic() - began_s
                assert suite.tree_of(part).startswith(str(ROOT))
                time.sleep(PAUSE_SECONDS)
                backfills.check()
        rows = backfills.assert_all_ended_well(listener.statuses, 400)
        records.check()
        events.check()
    repeated = sum(each.repeated for each in records.writers)
    print_campaign(
        f"Rolling upgrade from {old} to {commit('HEAD')} under load: 0 lost, 0 doubled",
        ["what", "number", "remark"],
        ["requests", len(backfills.sent), f"{rows:,} rows equal the oracle, one status each"],
        ["records", len(records.ledger.written), f"{repeated} calls repeated, {records.ledger.repeats()}"],
        ["events", len(events.sent), f"heard once; session resumed {sum(events.notes.values())} times"],
        *([part, f"{seconds:.1f} s", "until ready"] for part, seconds in took.items()),
        since_s=started_s,
    )
