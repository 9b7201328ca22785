from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from dexorder_common.model.errors import Code
from dexorder_common.rpc.client_retry import (
    Failure,
    code_of,
    error_text,
    failure_of,
    is_failure,
    is_refused,
    is_too_large,
)


def failed(code: grpc.StatusCode, details: str | None = "why", *, ours: bool = True) -> AioRpcError:
    """Return the error of a status that one of our servers sent, or the connection or a proxy before it."""
    trailing = Metadata(("grpc-status-details-bin", b"")) if ours else Metadata()
    return AioRpcError(code, Metadata(), trailing, details)


def test_codes_are_those_of_grpc() -> None:
    assert {code.name: code.value for code in Code} == {code.name: code.value[0] for code in grpc.StatusCode}


@pytest.mark.parametrize("status", grpc.StatusCode, ids=lambda status: status.name)
def test_error_of_grpcio_keeps_its_code_and_text(status: grpc.StatusCode) -> None:
    error = failed(status)
    assert code_of(error) is Code[status.name]
    assert error_text(error) == f"{status.name}: why"
    assert is_failure(error, failure_of(Code[status.name]))
    assert not is_failure(error, *(kind for kind in Failure if kind is not failure_of(Code[status.name])))


# What is seen behind Envoy, with the code that HTTP/2 or the status of HTTP gives it.
@pytest.mark.parametrize(
    ("status", "details"),
    [
        (grpc.StatusCode.INTERNAL, "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"),
        (grpc.StatusCode.CANCELLED, "Received RST_STREAM with error code 8"),
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.UNAVAILABLE, "upstream connect error or disconnect/reset before headers"),
        (grpc.StatusCode.UNIMPLEMENTED, ""),
    ],
)
def test_status_without_our_details_did_not_come_from_the_server(status: grpc.StatusCode, details: str) -> None:
    assert is_failure(failed(status, details, ours=False), Failure.UNANSWERED)


@pytest.mark.parametrize("status", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED])
def test_only_our_servers_refuse_a_part_for_good(status: grpc.StatusCode) -> None:
    """A policy of the mesh may arrive a second after the part; what our callers file says does not change so."""
    assert is_refused(failed(status))
    assert not is_refused(failed(status, "RBAC: access denied", ours=False))
    assert is_failure(failed(status, "RBAC: access denied", ours=False), Failure.DENIED), "a user is told at once"


def test_method_that_a_server_lacks_is_denied_though_grpc_itself_answers() -> None:
    assert is_failure(failed(grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ours=False), Failure.DENIED)


def test_other_errors_are_not_failed_calls() -> None:
    assert code_of(ValueError("x")) is Code.UNKNOWN
    assert error_text(ValueError("x")) == "x"
    assert not is_failure(ValueError("x"), *Failure)
    assert error_text(failed(grpc.StatusCode.INTERNAL, None)) == "INTERNAL: no details"


@pytest.mark.parametrize(
    ("status", "details", "too_large"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 4)", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "quota reached", False),
        (grpc.StatusCode.INVALID_ARGUMENT, "larger than max", False),
    ],
)
def test_too_large_message(status: grpc.StatusCode, details: str, too_large: bool) -> None:
    assert is_too_large(failed(status, details)) is too_large
