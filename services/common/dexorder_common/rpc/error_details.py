"""Machine-readable details of a failed call: google.rpc.Status as gRPC clients of any language read it.

    detail        when                                       content
    ErrorInfo     always                                     reason: the error's name; domain; service and method
    BadRequest    the text starts with a field's name        the field, and the text
    RetryInfo     the time of the next attempt is known      that time

An error's text starts with the field that it is about (``end_time 5 is not after start_time 9``), so the field is read
from the text. It counts only if the request has a field of this name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from dexorder_common.model.errors import Code, SuiteError

STATUS_DETAILS = "grpc-status-details-bin"
"""Name of the trailing metadata entry with a serialized google.rpc.Status."""
DOMAIN = "dexorder"
_MAX_TEXT = 512
"""Headers of a call are limited to 8 KiB in many proxies; the status has the whole text."""
_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)((?:\[\d+\]|\.[A-Za-z_][A-Za-z0-9_]*)*):? ")
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def field_names(message: Descriptor) -> frozenset[str]:
    """Return the names of all fields of a message and of the messages in it."""
    names: set[str] = set()
    seen: set[str] = set()
    pending = [message]
    while pending:
        each = pending.pop()
        if each.full_name in seen:
            continue
        seen.add(each.full_name)
        for field in each.fields:
            names.add(field.name)
            if field.message_type is not None:
                pending.append(field.message_type)
    return frozenset(names)


def violated_field(text: str, names: Iterable[str]) -> str | None:
    """Return the field, with its path, that starts a text; None if it starts with another word."""
    found = _FIELD.match(text)
    if found is None or found[1] not in names:
        return None
    return found[1] + found[2]


def reason_of(error: BaseException) -> str:
    """Return an error's name as ErrorInfo has it, INVALID_REQUEST for InvalidRequest; INTERNAL for one not of ours."""
    if isinstance(error, SuiteError):
        return _CAPITAL.sub("_", type(error).__name__).upper()
    return Code.UNIMPLEMENTED.name if isinstance(error, NotImplementedError) else Code.INTERNAL.name


def encode_details(
    code: Code, text: str, *, reason: str, method: str, retry_ms: int | None, names: Iterable[str]
) -> bytes:
    """Return the value of `STATUS_DETAILS`.

    Args:
        method: ``service/method``.
        names: The names of the request's fields, as `field_names`.
    """
    text = text[:_MAX_TEXT]
    status = status_pb2.Status(code=code, message=text)
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata={"method": method})]
    if code is Code.INVALID_ARGUMENT and (field := violated_field(text, names)):
        violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=text)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if retry_ms is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_ms)
        details.append(retry)
    for each in details:
        status.details.add().Pack(each)
    encoded: bytes = status.SerializeToString()
    return encoded


def reason_in(error: Any) -> str:
    """Return ``ErrorInfo.reason`` of a call that one of our servers has refused; empty without details."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS:
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                return ""
            info = error_details_pb2.ErrorInfo()
            return info.reason if any(each.Unpack(info) for each in status.details) else ""
    return ""
