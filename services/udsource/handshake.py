"""How the streams of ReadFn and AckFn begin. Pure.

    OPENED --handshake{sot}--> GREETED --request--> GREETED ...

A client opens with a handshake and waits for ours before it sends requests; each further message is a request. Both
answers are the caller's to send.
"""

from __future__ import annotations

from services.common.model.errors import InvalidRequest


class Handshake:
    """The state of one stream."""

    def __init__(self) -> None:
        self.greeted = False
        """Whether the handshake has been made; every message from then on is a request."""

    def receive(self, *, handshake: bool, sot: bool, request: bool) -> None:
        """Take the next message of the client: the handshake if ``greeted`` is false, else a request.

        Args:
            handshake: Whether the message has a handshake.
            sot: Its start-of-transmission flag.
            request: Whether the message has a request.
        Raises:
            InvalidRequest: The message is not the next one in the protocol; the stream is over.
        """
        if handshake and request:
            raise InvalidRequest("a message carries either a handshake or a request, not both")
        if not self.greeted and not (handshake and sot):
            raise InvalidRequest("the first message must be a handshake with sot = true")
        if self.greeted and handshake:
            raise InvalidRequest("the handshake has been made already")
        if self.greeted and not request:
            raise InvalidRequest("the message has neither a handshake nor a request")
        self.greeted = True
