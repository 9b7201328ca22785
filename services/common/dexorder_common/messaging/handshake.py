"""ZMTP handshakes: how long they may take, the events of failed ones, and what to check. Decides only.

A proxy that detects protocols, such as Linkerd's, waits up to 10 s for a line end or HTTP/2's preface before it
connects to the server. ZMTP's client sends 10 bytes without a line end and waits for the answer. So each such proxy on
the way delays the handshake by that time, unless the port is marked as opaque.
"""

from __future__ import annotations

import zmq

CLIENT_SECONDS = 30.0
"""Longest handshake of a client: two proxies that wait 10 s each."""
SERVER_SECONDS = 15.0
"""Longest handshake of a server: one proxy that has connected to it and waits."""
REFUSALS = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "protocol",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "other",
}
"""Events of a socket's monitor after a handshake that failed, and their short names."""
REFUSED = sum(REFUSALS)
CLIENT_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | REFUSED
"""Events that tell a client whether it is connected."""
_SILENT = (
    "the other side closed the connection or did not answer in time: something else may listen there, or a proxy "
    "waits for the first bytes; mark the port as opaque there (Linkerd: config.linkerd.io/opaque-ports, docs/mesh.md)"
)


def explain_refusal(event: int, *, curve: bool) -> str:
    """Return a possible reason for the failure of a client's handshake.

    Args:
        event: Which of `REFUSALS`.
        curve: Whether the client uses CURVE.
    """
    if curve:
        keys = "check the CURVE keys on both sides"
        return keys if event != zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL else f"{keys}; or {_SILENT}"
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return _SILENT
    return "the other side requires CURVE, which is off here, or does not speak ZMTP"
