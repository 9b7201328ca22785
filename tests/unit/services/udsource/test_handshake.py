from __future__ import annotations

import pytest

from services.common.model.errors import InvalidRequest
from services.udsource.handshake import Handshake

HELLO = {"handshake": True, "sot": True, "request": False}
REQUEST = {"handshake": False, "sot": False, "request": True}
NOTHING = {"handshake": False, "sot": False, "request": False}


def test_requests_follow_one_handshake() -> None:
    state = Handshake()
    for message in (HELLO, REQUEST, REQUEST):
        state.receive(**message)
        assert state.greeted


@pytest.mark.parametrize(
    ("before", "message", "text"),
    [
        ([], REQUEST, "first message must be a handshake"),
        ([], NOTHING, "first message must be a handshake"),
        ([], {**HELLO, "sot": False}, "first message must be a handshake"),
        ([], {**HELLO, "request": True}, "not both"),
        ([HELLO], HELLO, "made already"),
        ([HELLO], {**HELLO, "sot": False}, "made already"),
        ([HELLO], NOTHING, "neither"),
        ([HELLO, REQUEST], {**HELLO, "request": True}, "not both"),
    ],
)
def test_out_of_order_messages_are_refused(before: list[dict[str, bool]], message: dict[str, bool], text: str) -> None:
    state = Handshake()
    for each in before:
        state.receive(**each)
    with pytest.raises(InvalidRequest, match=text):
        state.receive(**message)
    assert state.greeted == bool(before)
