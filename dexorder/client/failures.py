"""Failures of calls to the relay: why it can't be reached, and its answers as our errors. Pure.

grpcio has one code for all causes of a relay that can't be reached, UNAVAILABLE; only its text tells them apart. A text
that is not recognised is treated as a relay that is not available for a moment.
"""

from __future__ import annotations

import re

from dexorder import errors
from dexorder_common.model.errors import Code
from dexorder_common.model.server_info import CAPABILITIES, FIRST_VERSION, ServerInfo, is_older
from dexorder_common.packages import version

_TLS = "DEXORDER_CHANNEL_TLS_CA"
_WHERE = "--relay or DEXORDER_RELAY says where it is"
_CAUSES = (
    (("Connection refused",), f"nothing listens at {{address}}; start the suite with `dexorder up`, or {_WHERE}"),
    (
        ("errors resolving", "DNS resolution failed", "Domain name not found"),
        f"{{address}} names no known host; {_WHERE}, as host:port",
    ),
    (("WRONG_VERSION_NUMBER",), f"{{address}} does not speak TLS; unset {_TLS} for a relay without it, or {_WHERE}"),
    (
        ("CERTIFICATE_VERIFY_FAILED", "andshake failed"),
        f"the certificate of {{address}} is not valid: it must be signed by an authority in the file of {_TLS}",
    ),
    (("Hostname Verification",), f"the certificate of {{address}} is for another host; {_WHERE}, by a name in it"),
    (("Failed parsing HTTP/2", "http1"), f"{{address}} is not a gRPC server; is it the port of another part? {_WHERE}"),
    (
        ("Socket closed", "Connection reset", "Broken pipe", "End of TCP stream"),
        f"{{address}} closes the connection; it requires TLS ({_TLS}), or is not a relay ({_WHERE})",
    ),
)
"""Texts of which one is in the error's, and what to say. The last cause is the least certain."""
_OF_PROXIES = (
    (
        "RBAC: access denied",
        "its policy forbids the call: check the AuthorizationPolicy for this client's account",
    ),
    ("Jwt ", "it checks JWTs in `authorization`: send our token with DEXORDER_TOKEN_METADATA=x-dexorder-token"),
    ("overflow", "it limits the calls that are open at a time (max_requests)"),
    ("rate_limited", "it limits the rate of calls: check its rate limit"),
    ("http2 header with status: 429", "it limits the rate of calls: check its rate limit"),
    ("http2 header with status: 404", "it has no route for this call"),
    ("no healthy upstream", "it knows no relay that is ready: check the relay's pods and its Service"),
    ("upstream connect error", "it can't reach the relay: is it running, and part of the mesh?"),
    ("upstream request timeout", "its route has a timeout: set it to 0"),
    ("stream timeout", "its route has a timeout: set it to 0"),
)
"""Words in what a proxy answers for a relay, and what to check."""
_DATASET = re.compile(r"(?:the relay answered INVALID: )?dataset '([^']+)' is not ")
"""The start of a refusal of a dataset."""
_CONNECTING = ("failed to connect", "errors resolving", "DNS resolution failed")
"""Texts of errors before a connection stands; a connection that breaks has other ones."""


_SILENT = (
    f"{{address}} accepts connections or drops their packets, and says nothing: it is not a relay, the relay is "
    f"suspended, or a firewall is between; {_WHERE}"
)


def cause_of(code: Code, details: str, address: str, *, is_connected: bool = True) -> str | None:
    """Return one sentence on why a call did not reach a relay, with a remedy; None if the cause is unknown.

    Args:
        is_connected: Whether the server has spoken HTTP/2, so that a call that timed out may have reached it.
    """
    if code is Code.DEADLINE_EXCEEDED and not is_connected:
        return _SILENT.format(address=address)
    if code is not Code.UNAVAILABLE:
        return None
    if not any(text in details for text in _CONNECTING):
        return None
    for texts, sentence in _CAUSES:
        if any(text in details for text in texts):
            return sentence.format(address=address)
    return None


def proxy_cause(code: Code, details: str) -> str | None:
    """Return the answer of a proxy before the relay, and what to check; None if the text is not from a proxy."""
    for words, advice in _OF_PROXIES:
        if words in details:
            return f"a proxy answered {details!r}; {advice}"
    if code is Code.UNIMPLEMENTED:
        return "a proxy answered UNIMPLEMENTED; it has no route for this call"
    return None


def answer_error(code: Code, details: str) -> errors.DexorderError:
    """Return the error for an answer of the relay that is a failure."""
    match code:
        case Code.UNAVAILABLE:
            return errors.TableUnavailable(f"the relay answered: {details}")
        case Code.NOT_FOUND:
            return errors.RequestUnknown(details)
        case Code.INVALID_ARGUMENT:
            return errors.RequestRefused(details)
        case Code.RESOURCE_EXHAUSTED:
            return errors.QuotaReached(details)
        case Code.UNAUTHENTICATED | Code.PERMISSION_DENIED:
            if cause := proxy_cause(code, details):
                return errors.NotAllowed(cause)
            return errors.NotAllowed(f"{details}; DEXORDER_TOKEN or DEXORDER_CHANNEL_TLS_CERTIFICATE say who you are")
        case _:
            return errors.DexorderError(f"the relay answered {code.name}: {details}")


def lacks(code: Code, details: str) -> str | None:
    """Return the feature that a relay of another version lacks: ``this call`` or a dataset; None for other answers."""
    if code is Code.UNIMPLEMENTED:
        return "this call"
    if code is Code.INVALID_ARGUMENT and (found := _DATASET.match(details)):
        return f"dataset {found[1]}"
    return None


def version_error(code: Code, details: str, info: ServerInfo | None, address: str) -> errors.DexorderError:
    """Return the error for an answer of which `lacks` returns something.

    Args:
        info: The relay's answer to GetServerInfo; None if it does not have this call either.
    """
    lacking = lacks(code, details) or ""
    dataset = lacking.removeprefix("dataset ") if code is Code.INVALID_ARGUMENT else None
    if dataset is not None and (info is None or dataset in info.datasets):
        return answer_error(code, details)  # the relay's own text names its datasets
    if dataset is not None and info is not None:
        lacking += f" (it has {', '.join(info.datasets)})"
    return not_supported(lacking, info, address)


def missing_capability(name: str, info: ServerInfo, address: str) -> errors.DexorderError:
    """Return the error for a capability that a relay does not have."""
    return not_supported(f"{name}, which needs {CAPABILITIES[name]}", info, address)


def not_supported(lacking: str, info: ServerInfo | None, address: str) -> errors.DexorderError:
    """Return the error for something that a server lacks; RelayUnreachable if the server is not a relay."""
    own = version()
    if info is None:
        return errors.NotSupported(
            f"the relay at {address} is older than {FIRST_VERSION} and does not have {lacking}; this client is {own}: "
            f"update the relay; or if {address} is not a relay, {_WHERE}"
        )
    if info.part != "relay":
        return errors.RelayUnreachable(f"{address} is the {info.part}, version {info.version}, not a relay; {_WHERE}")
    advice = "update this client" if is_older(own, info.version) else "update the relay"
    return errors.NotSupported(
        f"the relay at {address} is version {info.version} and does not have {lacking}; this client is {own}: {advice}"
    )
