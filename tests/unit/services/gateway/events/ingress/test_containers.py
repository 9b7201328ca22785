"""The containers file: look-ups, refusals, changes while the gateway runs; quotas (check 23), with a manual clock."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import zmq

from dexorder_common.model.errors import NotAllowed
from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import (
    LOCAL,
    Container,
    ContainerQuota,
    ContainerQuotas,
    Containers,
    ContainersFile,
    Verdict,
    read_containers,
)

# Public keys, the same in every worker of a run: they are part of the tests' ids.
KEY = zmq.curve_public(b"0" * 40).decode()
OTHER = zmq.curve_public(b"1" * 40).decode()


def write(folder: Path, text: str) -> Path:
    path = folder / "containers.yaml"
    path.write_text(dedent(text))
    return path


def test_a_container_is_found_by_each_name_and_sends_only_to_its_users(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"""
        containers:
          - {{container: alice-bot, curve: ["{KEY}", "{OTHER}"], client_id: desk-1, users: [alice],
             quota: {{queued_events: 5}}}}
          - {{container: all, users: "*"}}
    """,
    )
    known = read_containers(path)
    alice = known.by_key(KEY)
    assert alice is not None and alice is known.by_key(OTHER) is known.publisher("desk-1")
    assert (alice.name, alice.quota.queued_events, alice.quota.hard_events_per_second) == ("alice-bot", 5, None)
    assert alice.speaks_for("alice") and not alice.speaks_for("bob") and not alice.speaks_for("a")
    assert known.by_key(zmq.curve_keypair()[0].decode()) is None
    with pytest.raises(NotAllowed, match="'all'"):
        known.publisher("all")  # a container's name is nobody's client_id


def test_without_identity_every_sender_is_the_local_container(tmp_path: Path) -> None:
    assert Containers().publisher(None) is Containers().local() is LOCAL and LOCAL.speaks_for("anybody")
    known = read_containers(write(tmp_path, "containers: [{container: local, users: [alice]}]"))
    assert known.publisher(None) is known.local() and not known.local().speaks_for("bob")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("containers: {", "not YAML, line"),
        ("a: 1", "containers: Field required"),
        ("containers: [{container: a}]", r"containers\.0\.users"),
        ("containers: [{container: a, users: all}]", r"containers\.0\.users"),
        ("containers: [{container: '', users: '*'}]", "at least 1 character"),
        ("containers: [{container: a, users: '*', qota: {}}]", "Extra inputs"),
        ("containers: [{container: a, users: '*', curve: 'a secret'}]", "is not a public key"),
        ("containers: [{container: a, users: '*'}, {container: a, users: []}]", "container 'a' has two entries"),
        (f"containers: [{{container: a, users: '*', curve: ['{KEY}', '{KEY}']}}]", None),
        (
            f"containers: [{{container: a, users: '*', curve: '{KEY}'}}, {{container: b, users: '*', curve: '{KEY}'}}]",
            "a key of container 'b' has two entries",
        ),
        (
            "containers: [{container: a, users: '*', client_id: c}, {container: b, users: '*', client_id: c}]",
            "client_id 'c' has two entries",
        ),
    ],
)
def test_bad_file_is_refused_with_the_place_and_without_its_values(
    tmp_path: Path, text: str, problem: str | None
) -> None:
    path = write(tmp_path, text)
    if problem is None:
        assert len(read_containers(path)) == 1
        return
    with pytest.raises(ValueError, match=problem) as refused:
        read_containers(path)
    assert "secret" not in str(refused.value)


def test_file_is_read_again_when_it_changes_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, f"containers: [{{container: a, users: '*', curve: '{KEY}'}}]")
    file = ContainersFile(path)
    assert file.callback("any", KEY.encode()) and not file.callback("any", OTHER.encode())
    write(tmp_path, "containers: nonsense")
    assert file.callback("any", KEY.encode())
    write(tmp_path, f"containers: [{{container: a, users: '*', curve: '{OTHER}'}}]")
    assert file.callback("any", OTHER.encode()) and not file.callback("any", KEY.encode())
    path.unlink()
    assert file.callback("any", OTHER.encode())


SECOND = 1_000_000_000
QUOTAS = EventsSettings(soft_events_per_second=10, hard_events_per_second=20, hard_queued_events=1000)
A, B = Container("a", None), Container("b", None)


def test_flood_is_delayed_then_refused_and_critical_never() -> None:
    quotas = ContainerQuotas(QUOTAS)
    normal = [quotas.take(A, Priority.NORMAL, 0) for _ in range(25)]
    assert normal == [Verdict.WITHIN] * 10 + [Verdict.SOFT] * 10 + [Verdict.REFUSED] * 5
    assert {quotas.take(A, Priority.CRITICAL, 0) for _ in range(50)} == {Verdict.WITHIN}
    assert quotas.take(B, Priority.NORMAL, 0) is Verdict.WITHIN, "another container has its own quota"


def test_quota_refills_up_to_one_second_of_its_rate() -> None:
    quotas = ContainerQuotas(QUOTAS)
    for _ in range(30):
        quotas.take(A, Priority.NORMAL, 0)
    half = [quotas.take(A, Priority.NORMAL, SECOND // 2) for _ in range(12)]
    assert half == [Verdict.WITHIN] * 5 + [Verdict.SOFT] * 5 + [Verdict.REFUSED] * 2
    later = [quotas.take(A, Priority.NORMAL, 3600 * SECOND) for _ in range(30)]
    assert later.count(Verdict.REFUSED) == 10


def test_queued_events_count_and_a_container_may_have_its_own_limits() -> None:
    quotas = ContainerQuotas(QUOTAS)
    small = Container("small", None, ContainerQuota(queued_events=2, soft_events_per_second=1))
    assert quotas.take(small, Priority.NORMAL, 0) is Verdict.WITHIN
    assert quotas.take(small, Priority.NORMAL, 0) is Verdict.SOFT
    quotas.queued["small"] = 2
    assert quotas.take(small, Priority.NORMAL, SECOND) is Verdict.REFUSED
    assert quotas.take(small, Priority.CRITICAL, SECOND) is Verdict.WITHIN
    quotas.queued["small"] -= 1
    assert quotas.take(small, Priority.NORMAL, SECOND) is not Verdict.REFUSED


def test_slow_rate_admits_one_event_at_the_start() -> None:
    slow = ContainerQuotas(EventsSettings(soft_events_per_second=0.1, hard_events_per_second=0.1))
    assert slow.take(A, Priority.NORMAL, 0) is Verdict.WITHIN
    assert slow.take(A, Priority.NORMAL, 9 * SECOND) is Verdict.REFUSED
    assert slow.take(A, Priority.NORMAL, 10 * SECOND) is Verdict.WITHIN
