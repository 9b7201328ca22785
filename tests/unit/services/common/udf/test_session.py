"""The protocol's state machines, written down a second time as the allowed sequences."""

from __future__ import annotations

import itertools

import pytest

from dexorder_udf.errors import ProtocolError
from dexorder_udf.session import AgentPhase, AgentSession, Edge, HostPhase, HostSession, MessageKind


def host(*steps: str, edge: Edge = Edge.STREAM) -> HostSession:
    """Run steps such as ">info" (request) and "<info" (response)."""
    session = HostSession()
    session.provides(edge)
    for step in steps:
        act = session.sends if step[0] == ">" else session.receives
        act(MessageKind[step[1:].upper()])
    return session


STARTED = (">info", "<info", ">init", "<init")


@pytest.mark.parametrize(
    "steps",
    [
        STARTED,
        (">init", "<init"),
        (*STARTED, ">restore", "<restore", ">point", "<point"),
        (*STARTED, ">point", ">snapshot", "<point", "<snapshot", "<point"),
        (*STARTED, ">snapshot", ">snapshot", "<snapshot", "<snapshot"),
        (">keepalive", "<keepalive", ">info", "<keepalive", "<info", ">keepalive"),
        (*STARTED, "<point"),
    ],
)
def test_the_host_allows(steps: tuple[str, ...]) -> None:
    host(*steps)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (("<info",), "answer to info, which was not requested"),
        ((">info", "<init"), "answer to init"),
        ((">info", "<info", "<info"), "answer to info"),
        ((*STARTED, "<snapshot"), "answer to snapshot"),
        ((*STARTED, ">snapshot", "<snapshot", "<snapshot"), "answer to snapshot"),
        ((*STARTED, "<restore"), "answer to restore"),
        ((">info", "<point"), "a point while the session was info requested"),
        ((*STARTED, "<begin"), "begin of a batch on a stream edge"),
        ((">point",), "can't be sent"),
        ((*STARTED, ">init"), "can't be sent"),
        ((*STARTED, ">point", ">restore"), "can't be sent"),
        ((">info", ">init"), "can't be sent"),
    ],
)
def test_the_host_refuses(steps: tuple[str, ...], words: str) -> None:
    host(*steps[:-1])
    with pytest.raises(ProtocolError, match=words):
        host(*steps)


def test_the_order_of_batches() -> None:
    for steps in itertools.product(("<begin", "<point", "<end"), repeat=4):
        inside, allowed = False, True
        for step in steps:
            allowed = allowed and inside is (step != "<begin")
            inside = step != "<end"
        if allowed:
            host(*STARTED, *steps, edge=Edge.BATCH)
        else:
            with pytest.raises(ProtocolError):
                host(*STARTED, *steps, edge=Edge.BATCH)


def test_a_negative_size_is_refused() -> None:
    session = host(*STARTED, edge=Edge.BATCH)
    with pytest.raises(ProtocolError, match="negative size -1"):
        session.receives(MessageKind.BEGIN, -1)


@pytest.mark.parametrize(
    ("kinds", "phase"),
    [
        ((MessageKind.INFO,), AgentPhase.NEW),
        ((MessageKind.INFO, MessageKind.INIT), AgentPhase.READY),
        ((MessageKind.INIT, MessageKind.INFO, MessageKind.KEEPALIVE), AgentPhase.READY),
        ((MessageKind.INIT, MessageKind.RESTORE, MessageKind.POINT), AgentPhase.RUNNING),
        ((MessageKind.INIT, MessageKind.SNAPSHOT, MessageKind.POINT, MessageKind.SNAPSHOT), AgentPhase.RUNNING),
    ],
)
def test_the_agent_allows(kinds: tuple[MessageKind, ...], phase: AgentPhase) -> None:
    session = AgentSession(Edge.STREAM)
    for each in kinds:
        session.receives(each)
    assert session.phase is phase


@pytest.mark.parametrize(
    ("wants", "kinds"),
    [
        (Edge.STREAM, (MessageKind.POINT,)),
        (Edge.STREAM, (MessageKind.RESTORE,)),
        (Edge.STREAM, (MessageKind.SNAPSHOT,)),
        (Edge.STREAM, (MessageKind.INIT, MessageKind.INIT)),
        (Edge.STREAM, (MessageKind.INIT, MessageKind.POINT, MessageKind.RESTORE)),
        (Edge.STREAM, (MessageKind.INIT, MessageKind.BEGIN)),
        (Edge.BATCH, (MessageKind.INIT, MessageKind.POINT)),
        (Edge.BATCH, (MessageKind.INIT, MessageKind.END)),
        (Edge.BATCH, (MessageKind.INIT, MessageKind.BEGIN, MessageKind.BEGIN)),
        (Edge.STREAM, (MessageKind.ERROR,)),
    ],
)
def test_the_agent_refuses(wants: Edge, kinds: tuple[MessageKind, ...]) -> None:
    session = AgentSession(wants)
    for each in kinds[:-1]:
        session.receives(each)
    with pytest.raises(ProtocolError, match="the host"):
        session.receives(kinds[-1])


def test_every_phase_of_the_host_has_a_name_for_errors() -> None:
    assert len({each.value for each in HostPhase}) == len(HostPhase)
