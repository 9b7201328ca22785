"""Parts that are not ready are named, at the start and after a death."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dexorder.supervisor import suite
from dexorder.supervisor.state import PartState
from dexorder.supervisor.suite import Reporter


async def test_parts_are_named_until_they_are_ready_and_again_after_a_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_ANNOUNCE_SECONDS", 0.001)

    def part(state: str) -> Any:
        return SimpleNamespace(ready=asyncio.Event(), log_file=Path(state), state=PartState("a:1", "", state=state))

    parts = {"relay": part("ready"), "spark": part("starting")}
    parts["relay"].ready.set()
    said: asyncio.Queue[object] = asyncio.Queue()
    report = Reporter(all_ready=lambda: said.put_nowait("all"), waiting=lambda logs: said.put_nowait(sorted(logs)))
    task = asyncio.create_task(suite._announce(parts, report))
    assert await said.get() == ["spark"]
    parts["spark"].state = PartState("a:1", "", state="ready")
    parts["spark"].ready.set()
    while (found := await said.get()) != "all":
        assert found == ["spark"]
    await asyncio.sleep(0.01)
    assert said.empty()
    parts["relay"].state = PartState("a:1", "", state="restarting")
    assert await said.get() == ["relay"]
    task.cancel()
