"""The containers file: look-ups, refusals, and changes while the gateway runs."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
import zmq

from dexorder_common.model.errors import NotAllowed
from dexorder_gateway.events.ingress.containers import LOCAL, Containers, ContainersFile, read_containers

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
