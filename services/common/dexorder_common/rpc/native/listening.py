"""Sockets of a native server, its TLS, and the facts that a connection gives about its client."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dexorder_common.config import split_address

_BACKLOG = 1_024
_ALPN = "h2"


def bound(address: str) -> list[socket.socket]:
    """Return sockets that are bound to ``host:port`` or ``unix:/path``; port 0 is the same free port for all.

    Raises:
        OSError: It can't be bound.
    """
    if address.startswith("unix:"):
        return [_bound_unix(Path(address.removeprefix("unix:")))]
    host, number = split_address(address)
    sockets = list[socket.socket]()
    try:
        found = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, place in dict.fromkeys((family, place[0]) for family, _, _, _, place in found):
            both = family == socket.AF_INET6 and place == "::" and socket.has_dualstack_ipv6()
            made = socket.create_server(
                (str(place), number), family=family, backlog=_BACKLOG, dualstack_ipv6=both, reuse_port=False
            )
            sockets.append(made)
            number = number or made.getsockname()[1]
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets


def _bound_unix(path: Path) -> socket.socket:
    with suppress(OSError):  # one that a killed process has left; the caller has checked that no process listens
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(str(path))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made


def server_tls(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Return the TLS of a server; with ``client_ca`` clients need a certificate. OSError if a file can't be used."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(certificate, key)
    tls.set_alpn_protocols([_ALPN])
    if client_ca:
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


def speaks_http2(transport: Any) -> bool:
    """Return whether TLS has agreed on HTTP/2."""
    tls = transport.get_extra_info("ssl_object")
    return tls is not None and tls.selected_alpn_protocol() == _ALPN


def peer_of(transport: Any) -> str:
    """Return the address of a client as grpcio writes it."""
    made = transport.get_extra_info("socket")
    if made is None or made.family == socket.AF_UNIX:
        return "unix:"
    host, port = transport.get_extra_info("peername")[:2]
    if made.family == socket.AF_INET6:
        return f"ipv6:{quote(f'[{host}]', safe=':')}:{port}"
    return f"ipv4:{host}:{port}"


def auth_of(transport: Any) -> Mapping[str, Sequence[bytes]]:
    """Return the properties of a client's certificate, by grpcio's names; TLS has verified it."""
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return {}
    auth: dict[str, list[bytes]] = {"transport_security_type": [b"ssl"]}
    certificate: Any = transport.get_extra_info("peercert")
    if not certificate:
        return auth
    names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    if names:
        auth["x509_common_name"] = [name.encode() for name in names]
    others = [value for _, value in certificate.get("subjectAltName", ())]
    if others:
        auth["x509_subject_alternative_name"] = [name.encode() for name in others]
    return auth
