"""States that no table has are removed, once they are old."""

from __future__ import annotations

import time
from pathlib import Path

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import OHLC, udf_table
from dexorder_spark.udf.lake import UdfLake, remove_orphan_states
from dexorder_spark.udf.state import StageState

LIMIT = 1 << 20


def commit(lake: UdfLake) -> None:
    loaded = lake.load()
    lake.commit(loaded, loaded.commit_state, StageState(snapshot=b"s"), ())


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.state"))


def test_only_states_of_no_table_are_removed_and_only_old_ones(tmp_path: Path) -> None:
    settings = CatalogSettings.local(tmp_path)
    catalog = settings.load()
    assert remove_orphan_states(catalog, time.time_ns()) == 0  # no table at all
    OHLC.load_or_create(catalog)
    assert remove_orphan_states(catalog, time.time_ns()) == 0  # no folder
    kept, dropped = UdfLake(settings, "kept", LIMIT), UdfLake(settings, "dropped", LIMIT)
    commit(kept)
    commit(dropped)
    catalog.drop_table(udf_table("dropped").name)
    kept._write(kept.load().table, b"of a driver that was killed")
    (folder,) = {path.parent for path in tmp_path.rglob("*.state")}
    (folder / "notes.txt").write_text("not ours")
    assert remove_orphan_states(catalog, time.time_ns() - 3_600 * 10**9) == 0 and len(states(tmp_path)) == 3
    assert remove_orphan_states(catalog, time.time_ns() + 10**9) == 2
    loaded = kept.load()
    assert states(tmp_path) == [loaded.commit_state.udf_state.rpartition("/")[2]]
    assert loaded.state == StageState(snapshot=b"s") and (folder / "notes.txt").exists()
