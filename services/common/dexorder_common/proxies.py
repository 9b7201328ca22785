"""Headers of a proxy about a caller: the name in its certificate, or the claims of a JWT that the proxy has checked."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import unquote

from dexorder_common.model.errors import Unauthenticated

FORWARDED_CERTIFICATE = "x-forwarded-client-cert"
"""Metadata in which Envoy passes on the verified facts of the caller's certificate."""
Network = IPv4Network | IPv6Network


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a list with commas; ValueError for one that is none."""
    return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())


def peer_address(peer: str) -> IPv4Address | IPv6Address | None:
    """Return the address of a peer as gRPC or our HTTP server writes it; None without an address."""
    kind, _, rest = unquote(peer).partition(":")
    host = rest if kind == "http" else rest.rpartition(":")[0]
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_proxy(address: IPv4Address | IPv6Address | None, networks: Collection[Network]) -> bool:
    """Return whether an address may name a caller: one of loopback or of a network."""
    return address is not None and (address.is_loopback or any(address in network for network in networks))


def forwarded_uri(header: str) -> str:
    """Return the URI in the last element of `FORWARDED_CERTIFICATE`: each proxy on the way appends the caller it saw.

    Raises:
        Unauthenticated: The header is empty, or its last element does not have exactly one URI.
    """
    last = _split(header, ",")[-1]
    uris = [value for name, _, value in (each.partition("=") for each in _split(last, ";")) if name.lower() == "uri"]
    if len(uris) != 1 or not uris[0]:
        raise Unauthenticated(f"{len(uris)} URIs in the last element of {FORWARDED_CERTIFICATE}; a proxy must set one")
    return uris[0].strip('"')


def forwarded_jwt(payloads: Sequence[str]) -> str:
    """Return ``ISSUER/SUBJECT`` of a JWT's payload: base64url of a JSON object, as Istio's ``outputPayloadToHeader``.

    Raises:
        Unauthenticated: There are several, or it is not such a payload.
    """
    if len(payloads) != 1:
        raise Unauthenticated(f"{len(payloads)} payloads of JWTs; a proxy must set one")
    try:
        claims = json.loads(base64.urlsafe_b64decode(payloads[0] + "=" * (-len(payloads[0]) % 4)))
        issuer, subject = claims["iss"], claims["sub"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Unauthenticated("the payload of the JWT is not a JSON object with iss and sub") from None
    if not (isinstance(issuer, str) and isinstance(subject, str) and issuer and subject):
        raise Unauthenticated("iss and sub of the JWT must be texts")
    return f"{issuer}/{subject}"


def _split(text: str, mark: str) -> list[str]:
    """Return the parts of a text between marks outside of quotation marks; a backslash keeps the next character."""
    parts, quoted, escaped = [""], False, False
    for character in text:
        if character == mark and not quoted:
            parts.append("")
            continue
        parts[-1] += character
        if character == '"' and not escaped:
            quoted = not quoted
        escaped = character == "\\" and not escaped
    return [part.strip() for part in parts]
