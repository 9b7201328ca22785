"""A gateway whose file is replaced by an older copy of itself, as sessions and containers see it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events.container import CRITICAL, Container, event
from tests.integration.events.rig import KINDS, Rig

pytestmark = pytest.mark.timeout(120)
WEB = given.WEB


def copy_file(file: Path, target: Path) -> None:
    """Put a copy of a file, with all of its parts, in the place of another; nobody uses them."""
    for old in target.parent.glob("events.db*"):
        old.unlink()
    for part in file.parent.glob("events.db*"):
        shutil.copyfile(part, target.with_name(part.name))


async def published(container: Container, user: str, *names: str) -> None:
    for name in names:
        await container.queued(event(user, name, CRITICAL, [WEB]))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_session_over_a_restored_file_sees_a_reset_and_misses_nothing(own: Rig, kind: str) -> None:
    user, name = own.user(), own.name()
    file, copy = own.gateway.folder / "events.db", own.gateway.folder / "copy" / "events.db"
    copy.parent.mkdir()
    heard: list[pb.SessionEvent] = []
    own.gateway.start()
    async with own.container(name) as container:
        await published(container, user, "1", "2", "3")
    own.gateway.kill()
    copy_file(file, copy)
    own.gateway.start()
    async with own.container(name) as container:
        await published(container, user, "4", "5", "6")
        async with own.session(user, kind) as session:
            heard += [await session.next() for _ in range(6)]
            places = [session.place(each) for each in heard]
    own.gateway.kill()
    copy_file(copy, file)
    own.gateway.start()
    async with own.container(name) as container:
        await published(container, user, "7", "8", "9")
        async with own.session(user, kind) as late:
            await late.ack(places[5])  # of the lost event: it settles no other
        async with own.session(user, kind, places[5]) as session:
            again = [await session.next() for _ in range(6)]
            assert session.reset
            assert [each.event.event_id for each in again] == ["1", "2", "3", "7", "8", "9"]
            assert not any(each.settled for each in again)
            assert [each.sequence for each in again[:3]] == [each.sequence for each in heard[:3]]
            assert not {each.sequence for each in again[3:]} & {each.sequence for each in heard}
            last = session.place(again[-1])
        async with own.session(user, kind, places[2]) as session:
            assert not session.reset
            assert [(await session.take()).event.event_id for _ in range(3)] == ["7", "8", "9"]
        async with own.session(user, kind, last) as session:
            assert not session.reset
            await session.hears_nothing()
    records = {each.event.event_id: each.status for each in await own.records(user)}
    assert records == dict.fromkeys(["1", "2", "3", "7", "8", "9"], given.DELIVERED)
