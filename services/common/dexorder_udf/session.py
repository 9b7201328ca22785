"""The UDF protocol as two state machines, of the host and of the agent. Pure.

Requests go from the host to the agent, responses back; both are loosely coupled, so data may come between a request and
its response. Keepalives and the agent's error are allowed at any time.

Host:   NEW -info-> INFO -(answer)-> KNOWN -init-> INIT -(answer)-> READY -restore-> RESTORE -(answer)-> RUNNING
        READY -data, snapshot-> RUNNING; NEW -init-> INIT if the answer to info is known from before
Agent:  NEW -init-> READY -restore-> RUNNING; READY -data, snapshot-> RUNNING; info at any time

Data are points, or batches (begin, points, end) that do not interleave, depending on the edge.
"""

from __future__ import annotations

from enum import Enum, IntEnum

from dexorder_udf.errors import ProtocolError


class Edge(IntEnum):
    """Kind of data that a UDF wants or provides, with its number on the wire."""

    STREAM = 0
    BATCH = 1


class MessageKind(IntEnum):
    """Kind of a message, with its field number in both Request and Response; ERROR is a response only."""

    INFO = 1
    INIT = 2
    KEEPALIVE = 3
    SNAPSHOT = 4
    RESTORE = 5
    ERROR = 6
    BEGIN = 16
    POINT = 17
    END = 18


class HostPhase(Enum):
    """Requests of the host, and their answers."""

    NEW = "new"
    INFO = "info requested"
    KNOWN = "info received"
    INIT = "init requested"
    READY = "initialised"
    RESTORE = "restore requested"
    RUNNING = "running"


class AgentPhase(Enum):
    """Requests that the agent has received."""

    NEW = "new"
    READY = "initialised"
    RUNNING = "running"


_H, _A, _K = HostPhase, AgentPhase, MessageKind

HOST_SENDS = {
    (_H.NEW, _K.INFO): _H.INFO,
    (_H.NEW, _K.INIT): _H.INIT,
    (_H.KNOWN, _K.INIT): _H.INIT,
    (_H.READY, _K.RESTORE): _H.RESTORE,
    (_H.READY, _K.SNAPSHOT): _H.RUNNING,
    (_H.RUNNING, _K.SNAPSHOT): _H.RUNNING,
    (_H.READY, _K.POINT): _H.RUNNING,
    (_H.RUNNING, _K.POINT): _H.RUNNING,
    **{(phase, _K.KEEPALIVE): phase for phase in HostPhase},
}
"""Next phase of the host after it has sent a request; a batch is sent whole, so POINT stands for it too."""

HOST_RECEIVES = {
    (_H.INFO, _K.INFO): _H.KNOWN,
    (_H.INIT, _K.INIT): _H.READY,
    (_H.RESTORE, _K.RESTORE): _H.RUNNING,
    (_H.RUNNING, _K.SNAPSHOT): _H.RUNNING,
    **{(phase, kind): phase for phase in (_H.READY, _H.RUNNING) for kind in (_K.BEGIN, _K.POINT, _K.END)},
    **{(phase, kind): phase for phase in HostPhase for kind in (_K.KEEPALIVE, _K.ERROR)},
}
"""Next phase of the host after a response; any other response breaks the protocol."""

AGENT_RECEIVES = {
    (_A.NEW, _K.INIT): _A.READY,
    (_A.READY, _K.RESTORE): _A.RUNNING,
    **{
        (phase, kind): _A.RUNNING
        for phase in (_A.READY, _A.RUNNING)
        for kind in (_K.SNAPSHOT, _K.BEGIN, _K.POINT, _K.END)
    },
    **{(phase, kind): phase for phase in AgentPhase for kind in (_K.KEEPALIVE, _K.INFO)},
}
"""Next phase of the agent after a request; any other request breaks the protocol."""


class EdgeState:
    """Order of data on one edge: points alone, or batches."""

    def __init__(self, edge: Edge, speaker: str) -> None:
        """Take the edge and a name of the sending side for errors."""
        self.edge = edge
        self.batch_open = False
        self._speaker = speaker

    @property
    def takes_points(self) -> bool:
        """Return whether a point may come now."""
        return self.batch_open or self.edge is Edge.STREAM

    def take(self, kind: MessageKind, size: int = 0) -> None:
        """Take one data message.

        Args:
            kind: BEGIN, POINT or END.
            size: The size that a BEGIN announces; 0 means unknown.
        Raises:
            ProtocolError: It may not come now.
        """
        if kind is MessageKind.POINT:
            if not self.takes_points:
                raise ProtocolError(f"{self._speaker} sent a point outside a batch on a batch edge")
        elif self.edge is Edge.STREAM:
            raise ProtocolError(f"{self._speaker} sent {kind.name.lower()} of a batch on a stream edge")
        elif kind is MessageKind.BEGIN:
            if self.batch_open:
                raise ProtocolError(f"{self._speaker} began a batch before the end of the last one")
            if size < 0:
                raise ProtocolError(f"{self._speaker} began a batch with the negative size {size}")
            self.batch_open = True
        else:
            if not self.batch_open:
                raise ProtocolError(f"{self._speaker} sent the end of a batch that it had not begun")
            self.batch_open = False


class HostSession:
    """The host's side of one connection to a UDF.

    ``sends`` is called before a request is sent, ``receives`` for each response.
    """

    def __init__(self) -> None:
        self.phase = HostPhase.NEW
        self.snapshots_pending = 0
        self.output = EdgeState(Edge.STREAM, "it")

    @property
    def takes_points(self) -> bool:
        """Return whether `receives` would take a point and change nothing; for loops over many."""
        return self.phase is HostPhase.RUNNING and self.output.takes_points

    def provides(self, edge: Edge) -> None:
        """Set the edge of the output, which the info names."""
        self.output = EdgeState(edge, "it")

    def sends(self, kind: MessageKind) -> None:
        """Take note of a request.

        Raises:
            ProtocolError: The host may not send it now.
        """
        following = HOST_SENDS.get((self.phase, kind))
        if following is None:
            raise ProtocolError(f"{kind.name.lower()} can't be sent while the session is {self.phase.value}")
        self.phase = following
        if kind is MessageKind.SNAPSHOT:
            self.snapshots_pending += 1

    def receives(self, kind: MessageKind, size: int = 0) -> None:
        """Take note of a response.

        Raises:
            ProtocolError: The agent may not send it now.
        """
        following = HOST_RECEIVES.get((self.phase, kind))
        if following is None or (kind is MessageKind.SNAPSHOT and not self.snapshots_pending):
            raise ProtocolError(f"it sent {_named(kind)} while the session was {self.phase.value}")
        self.phase = following
        if kind is MessageKind.SNAPSHOT:
            self.snapshots_pending -= 1
        elif kind >= MessageKind.BEGIN:
            self.output.take(kind, size)


class AgentSession:
    """The agent's side of one connection to a host."""

    def __init__(self, wants: Edge) -> None:
        """Take the edge of the input."""
        self.phase = AgentPhase.NEW
        self.input = EdgeState(wants, "the host")

    @property
    def takes_points(self) -> bool:
        """Return whether `receives` would take a point and change nothing; for loops over many."""
        return self.phase is AgentPhase.RUNNING and self.input.takes_points

    def receives(self, kind: MessageKind, size: int = 0) -> None:
        """Take note of a request.

        Raises:
            ProtocolError: The host may not send it now.
        """
        following = AGENT_RECEIVES.get((self.phase, kind))
        if following is None:
            raise ProtocolError(f"the host sent {kind.name.lower()} while the session was {self.phase.value}")
        self.phase = following
        if kind >= MessageKind.BEGIN:
            self.input.take(kind, size)


def _named(kind: MessageKind) -> str:
    return {
        MessageKind.BEGIN: "the begin of a batch",
        MessageKind.POINT: "a point",
        MessageKind.END: "the end of a batch",
    }.get(kind, f"an answer to {kind.name.lower()}, which was not requested,")
