"""Failures of calls to the relay: why it can't be reached, and its answers as our errors. Pure.

grpcio has one code for all causes of a relay that can't be reached, UNAVAILABLE; only its text tells them apart. A text
that is not recognised is treated as a relay that is not available for a moment.
"""

from __future__ import annotations

from dexorder import errors
from dexorder_common.model.errors import Code

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
_CONNECTING = ("failed to connect", "errors resolving", "DNS resolution failed")
"""Texts of errors before a connection stands; a connection that breaks has other ones."""


def cause_of(code: Code, details: str, address: str) -> str | None:
    """Return why a call did not reach a relay, as one sentence with a remedy; None if the text does not say it."""
    if code is Code.UNIMPLEMENTED and details == "Method not found!":
        return f"{address} is a gRPC server but not a relay of this version; {_WHERE}"
    if code is not Code.UNAVAILABLE:
        return None
    if not any(text in details for text in _CONNECTING):
        return None
    for texts, sentence in _CAUSES:
        if any(text in details for text in texts):
            return sentence.format(address=address)
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
            return errors.NotAllowed(f"{details}; DEXORDER_TOKEN or DEXORDER_CHANNEL_TLS_CERTIFICATE say who you are")
        case _:
            return errors.DexorderError(f"the relay answered {code.name}: {details}")
