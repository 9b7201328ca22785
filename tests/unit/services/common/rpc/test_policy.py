"""Rules that every transport applies; `test_server_interceptor` shows them on a real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from dexorder_common.metrics import CallTally
from dexorder_common.model import errors
from dexorder_common.model.errors import Code
from dexorder_common.rpc.policy import CallStatus, Method, ServedCall
from tests.error_kinds import KINDS

FIXED = "internal error; the server's log has the details"


def started(text: str | None = None) -> ServedCall:
    return ServedCall(Method("pkg.Service", "Get", CallTally(), lambda method, error: text and f"{method}: {text}"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        *((kind("field x 7"), CallStatus(kind.code, "field x 7")) for kind in KINDS),
        (errors.Exhausted("full", retry_seconds=0.0104), CallStatus(Code.RESOURCE_EXHAUSTED, "full", 11)),
        (NotImplementedError("later"), CallStatus(Code.UNIMPLEMENTED, "later")),
        (NotImplementedError(), CallStatus(Code.UNIMPLEMENTED, "not implemented")),
        (KeyError("secret detail"), CallStatus(Code.INTERNAL, FIXED)),
        (asyncio.CancelledError(), None),
        (GeneratorExit(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_becomes_a_status(error: BaseException, status: CallStatus | None) -> None:
    call = started()
    assert call.fail(error) == status
    assert call.code is (status.code if status else Code.CANCELLED)


def test_service_words_an_internal_error_unless_the_transport_raised_it() -> None:
    assert started("disk").fail(KeyError("x")) == CallStatus(Code.INTERNAL, "pkg.Service/Get: disk")
    assert started("disk").fail(KeyError("x"), of_transport=True) == CallStatus(Code.INTERNAL, FIXED)


def test_call_is_counted_at_its_start_and_its_end() -> None:
    call = started()
    tally = call.method.tally
    assert (tally.started, tally.handled) == (1, {})
    call.fail(errors.NotFound("x"))
    call.finish()
    assert (tally.started, tally.handled, sum(tally.buckets)) == (1, {Code.NOT_FOUND: 1}, 1)


def test_policy_loads_without_grpc() -> None:
    code = "import sys; sys.modules['grpc'] = None; import dexorder_common.rpc.policy"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
