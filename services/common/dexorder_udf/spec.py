"""Declaration of a UDF: how it is reached, its options and its limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dexorder_udf.errors import UdfError
from dexorder_udf.framing import DEFAULT_LIMIT_BYTES
from dexorder_udf.options import Given

MIB = 1024 * 1024


@dataclass(frozen=True)
class UdfSpec:
    """A UDF and how to run it. Exactly one of ``prog``, ``socket`` and ``grpc_target`` is given.

    Attributes:
        name: Name in errors and logs.
        prog: Program to run as a child process, with ``args``; it gets our environment and ``env``.
        socket: Path of a unix socket on which the UDF listens; the host connects.
        grpc_target: host:port of a ``dexorder.udf.v1.UdfService``.
        options: One value or the values of each option; text is read as the type that the UDF declares.
        task: Id of the task, sent with init; Kapacitor sends its task's id.
        node: Id of the node, sent with init.
        timeout_seconds: A UDF that is silent for 1.2 times this is dead; its keepalives are requested at half of it.
            Only time in which the host waits for the UDF counts. A quarter of it bounds the input under way.
        connect_seconds: Longest time for connecting to a socket or a gRPC server.
        start_seconds: Longest time for info, init and restore, each of which may be slow.
        answer_seconds: Longest time for the answer to a snapshot request, and for taking the next piece of input.
            Each output, and the acceptance of input under way, prolongs it; keepalives alone do not.
        snapshot_seconds: Longest time between two snapshots while the UDF is fed.
        frame_limit_bytes: Size of the largest message of the UDF.
        replay_limit_bytes: Input that is kept for a restart; a snapshot is taken when there is more.
        output_limit_bytes: Largest output between two snapshots; a UDF that sends more has failed.
        max_restarts: Restarts without a snapshot in between, after which the UDF has failed.
        backoff_seconds: Pause before the first restart; it doubles with each, up to ``max_backoff_seconds``.
        grace_seconds: Time to end after the end of input, before SIGTERM, and then before SIGKILL.
    """

    name: str
    prog: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    socket: str | None = None
    grpc_target: str | None = None
    options: Mapping[str, Given | Sequence[Given]] = field(default_factory=dict)
    task: str = "dexorder"
    node: str = ""
    timeout_seconds: float = 10.0
    connect_seconds: float = 60.0
    start_seconds: float = 60.0
    answer_seconds: float = 120.0
    snapshot_seconds: float = 60.0
    frame_limit_bytes: int = DEFAULT_LIMIT_BYTES
    replay_limit_bytes: int = 64 * MIB
    output_limit_bytes: int = 256 * MIB
    max_restarts: int = 5
    backoff_seconds: float = 0.1
    max_backoff_seconds: float = 30.0
    grace_seconds: float = 5.0

    def __post_init__(self) -> None:
        ways = [each for each in ("prog", "socket", "grpc_target") if getattr(self, each)]
        if len(ways) != 1:
            given = " and ".join(ways) or "none"
            raise UdfError(self.name, f"exactly one of prog, socket and grpc is needed; given: {given}")
        if not self.prog and (self.args or self.env):
            raise UdfError(self.name, "args and env need prog")
        for name in (
            "timeout_seconds",
            "connect_seconds",
            "start_seconds",
            "answer_seconds",
            "snapshot_seconds",
            "frame_limit_bytes",
            "replay_limit_bytes",
            "output_limit_bytes",
            "grace_seconds",
        ):
            if getattr(self, name) <= 0:
                raise UdfError(self.name, f"{name}: {getattr(self, name)} is not above 0")
        for name in ("max_restarts", "backoff_seconds", "max_backoff_seconds"):
            if getattr(self, name) < 0:
                raise UdfError(self.name, f"{name}: {getattr(self, name)} is below 0")

    def backoff(self, restart: int) -> float:
        """Return the pause in seconds before the n-th restart in a row, from 1."""
        return float(min(self.max_backoff_seconds, self.backoff_seconds * 2 ** min(restart - 1, 30)))
