"""SetOffsets: which member commits, with fake groups and members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from dexorder_common.kafka.commits import Commit
from dexorder_common.kafka.member_commits import NotAssigned
from dexorder_common.model.errors import Conflict, Unavailable
from dexorder_gateway.kafkapixy import set_offsets as module
from dexorder_gateway.kafkapixy.admin_views import GroupView, MemberView
from dexorder_gateway.kafkapixy.set_offsets import set_offsets

WANTED = {0: (5, ""), 1: (6, "note")}
CHANGING = GroupView("g", settled=False)
EMPTY = GroupView("g", settled=True)


def stable(*members: MemberView) -> GroupView:
    return GroupView("g", settled=True, members=members)


def member(name: str, topic: str = "t", *partitions: int) -> MemberView:
    return MemberView(name, f"client-{name}", "/10.0.0.1", {topic: partitions})


def refused(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


class FakeMember:
    """Member that raises the given failures in turn, then commits."""

    def __init__(self, *topics: str, failures: Sequence[Exception] = ()) -> None:
        self.topics = topics
        self.member_id = "us"
        self.commits: list[tuple[str, Mapping[int, Commit]]] = []
        self._failures = list(failures)

    def set_offsets(self, topic: str, wanted: Mapping[int, Commit]) -> Future[None]:
        done: Future[None] = Future()
        if self._failures:
            done.set_exception(self._failures.pop(0))
        else:
            self.commits.append((topic, wanted))
            done.set_result(None)
        return done


@dataclass
class FakeKafka:
    """Groups and consumers; returns the views in turn, the last one repeatedly."""

    views: list[GroupView]
    ours: FakeMember | None = None
    failures: list[Exception] = field(default_factory=list)
    commits: list[tuple[str, Mapping[int, Commit]]] = field(default_factory=list)

    async def group(self, name: str) -> GroupView:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    async def commit(self, group: str, topic: str, wanted: Mapping[int, Commit]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.commits.append((topic, wanted))

    def reading(self, group: str) -> FakeMember | None:
        return self.ours

    async def wait_until_left(self, group: str) -> None:
        return

    async def set(self) -> None:
        admin_and_consumers: Any = self
        await set_offsets(admin_and_consumers, admin_and_consumers, "g", "t", WANTED)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0.0)


async def test_commit_for_a_group_without_members() -> None:
    kafka = FakeKafka([EMPTY])
    await kafka.set()
    assert kafka.commits == [("t", WANTED)]


async def test_our_reader_of_the_topic_commits_without_a_query() -> None:
    reader = FakeMember("u", "t")
    await FakeKafka([], reader).set()
    assert reader.commits == [("t", WANTED)]


async def test_changing_group_is_tried_again() -> None:
    kafka = FakeKafka([CHANGING, CHANGING, EMPTY], failures=[refused(KafkaError.UNKNOWN_MEMBER_ID)])
    await kafka.set()
    assert kafka.commits == [("t", WANTED)]


@pytest.mark.parametrize(
    "failure",
    [
        NotAssigned("not yet"),
        Unavailable("the reader has ended"),
        refused(KafkaError.REBALANCE_IN_PROGRESS),
        refused(KafkaError.ILLEGAL_GENERATION),
        refused(KafkaError.NOT_COORDINATOR),
    ],
)
async def test_our_reader_tries_again_after_a_rebalance(failure: Exception) -> None:
    reader = FakeMember("t", failures=[failure])
    await FakeKafka([stable(member("us", "t", 0, 1))], reader).set()
    assert reader.commits == [("t", WANTED)]


NOT_OURS = NotAssigned("one is elsewhere")


@pytest.mark.parametrize(
    ("members", "ours", "why"),
    [
        pytest.param(
            (member("us", "t", 0), member("them", "t", 1, 2)),
            FakeMember("t", failures=[NOT_OURS]),
            r"partitions \[1\] of topic 't' are read by client-them at 10.0.0.1",
            id="one is read elsewhere",
        ),
        pytest.param((member("them", "t", 0, 1, 2),), None, r"partitions \[0, 1\] of topic 't'", id="we read none"),
        pytest.param((member("them", "u", 0),), None, r"client-them at 10\.0\.0\.1", id="others read another topic"),
    ],
)
async def test_members_elsewhere_prevent_a_commit(
    members: tuple[MemberView, ...], ours: FakeMember | None, why: str
) -> None:
    kafka = FakeKafka([stable(*members)], ours)
    with pytest.raises(Conflict, match=why):
        await kafka.set()
    assert kafka.commits == [] and (ours is None or ours.commits == [])


async def test_our_reader_of_another_topic_commits_for_unread_partitions() -> None:
    reader = FakeMember("u")
    await FakeKafka([stable(member("us", "u", 0), member("them", "t", 2))], reader).set()
    assert reader.commits == [("t", WANTED)]


async def test_commit_that_a_new_member_may_have_missed_does_not_count() -> None:
    before, after = stable(member("us", "u", 0)), stable(member("us", "u", 0), member("them", "t", 0))
    kafka = FakeKafka([before, after], FakeMember("u"))
    with pytest.raises(Conflict, match="client-them"):
        await kafka.set()


async def test_permanent_refusal_is_raised() -> None:
    failure = refused(KafkaError.OFFSET_METADATA_TOO_LARGE)
    for kafka in (FakeKafka([EMPTY], failures=[failure]), FakeKafka([EMPTY], FakeMember("t", failures=[failure]))):
        with pytest.raises(KafkaException):
            await kafka.set()


async def test_group_that_keeps_rebalancing_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT_SECONDS", 0.05)
    with pytest.raises(Unavailable, match="rebalancing"):
        await FakeKafka([CHANGING]).set()
