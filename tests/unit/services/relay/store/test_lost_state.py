"""A relay's database and a gateway's outbox that have lost what was committed say so at their start."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from dexorder_common.config import BadSettings
from dexorder_gateway.events.delivery.changes import DeliveryChanges, QueuedRow
from dexorder_gateway.events.store.outbox import open_outbox
from dexorder_relay.state.changes import CoverageRead
from dexorder_relay.store.database import open_store
from tests.unit.services.gateway.events.samples import event


async def commit(path: Path, times: int) -> list[str]:
    """Start a relay's store, commit, stop; return what the start says."""
    with capture_logs() as logs:
        async with open_store(path) as store:
            for number in range(times):
                await store.commit([CoverageRead(number + 1)])
    return [each["event"] for each in logs if each["log_level"] == "error"]


def remove(path: Path) -> None:
    for each in path.parent.glob(f"{path.name}*"):
        if not each.name.endswith(".generation"):
            each.unlink()


async def test_a_relays_database_that_was_emptied_or_rolled_back_says_so_once(tmp_path: Path) -> None:
    path, older = tmp_path / "relay.db", tmp_path / "older"
    assert await commit(path, 3) == []
    shutil.copy(path, older)
    assert await commit(path, 3) == [] and await commit(path, 1) == []
    shutil.copy(older, path)
    (said,) = await commit(path, 1)
    assert "relay.db is behind its newest commit (3 of 7)" in said and "no backup of its folder is known" in said
    assert await commit(path, 1) == [], "it goes on from there"
    (tmp_path / "last-backup").write_text("/backups/suite.tar.gz\n")
    remove(path)
    (said,) = await commit(path, 1)
    assert "(0 of 5)" in said and said.endswith(f"dexorder restore /backups/suite.tar.gz --dir {tmp_path}")


async def test_a_relays_database_with_a_damaged_page_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    await commit(path, 1)
    data = bytearray(path.read_bytes())
    data[4096 * 3 : 4096 * 4] = b"\xff" * 4096
    path.write_bytes(data)
    (tmp_path / "last-backup").write_text("/backups/suite.tar.gz\n")
    with pytest.raises(BadSettings) as refused:
        await commit(path, 1)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(f"dexorder restore /backups/suite.tar.gz --dir {tmp_path}")


def accept(path: Path, *numbers: int) -> list[str]:
    """Open an outbox and accept events; return what the start says."""
    with capture_logs() as logs:
        outbox = open_outbox(path)
    changes = DeliveryChanges()
    changes.accepted += [QueuedRow(event(f"e{number}"), 1, 2) for number in numbers]
    outbox.write(changes)
    outbox.close()
    return [each["event"] for each in logs if each["log_level"] == "error"]


def test_an_outbox_that_was_emptied_or_rolled_back_says_so_once(tmp_path: Path) -> None:
    path, older = tmp_path / "events.db", tmp_path / "older"
    assert accept(path, 1, 2) == []
    shutil.copy(path, older)
    assert accept(path, 3, 4) == [] and accept(path) == []
    shutil.copy(older, path)
    (said,) = accept(path, 5)
    assert "events.db is behind its newest commit (2 of 4)" in said
    assert accept(path, 6) == []
    remove(path)
    assert "(0 of 4)" in accept(path)[0]
