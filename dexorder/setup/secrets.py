"""Certificates, CURVE keys and callers of a suite on one host, as ``deploy/compose.yaml`` mounts them.

    FOLDER/<part>/  ca.crt tls.crt tls.key    for both sides of its connections; its name is the ``client_id``
                    callers.yaml              who may call it
    relay/          relay.key_secret clients/ingestor.key
    ingestor/       ingestor.key_secret relay.key
    events/         events.key_secret containers.yaml
    desk/           desk.key_secret events.key

``desk`` is a client and a container, ``operator`` an admin; neither serves. The authority's own key is written nowhere:
to add a part or to renew a certificate, all are made again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dexorder.setup.config import SetupError
from dexorder_common.messaging.curve import make_keys, read_public_key

DAYS = 825
"""Life of the certificates."""
ROLES: Mapping[str, str | None] = {
    "relay": "client",
    "gateway": "pipeline",
    "events": None,
    "ingestor": "ingestor",
    "udsource": None,
    "spark": "pipeline",
    "desk": "client",
    "operator": "admin",
}
"""Each folder, and the role of its owner; None for a part that calls no other."""
CLIENTS = ("desk", "operator")
"""Owners that serve nothing."""
CURVE: Mapping[str, tuple[str, str]] = {
    "ingestor": ("ingestor.key", "relay/clients"),
    "relay": ("relay.key", "ingestor"),
    "events": ("events.key", "desk"),
}
"""Owners of key pairs whose public key goes to another folder."""


@dataclass(frozen=True)
class Made:
    """What `make` did; ``until`` is None if everything was there already."""

    until: datetime | None


def make(folder: Path, *, renew: bool = False, now: datetime | None = None) -> Made:
    """Write all folders unless each of them is complete; with ``renew`` write them again.

    Raises:
        SetupError: A file can't be written.
    """
    signs = [folder / owner / "ca.crt" for owner in ROLES]
    if not renew and all(sign.exists() for sign in signs):
        return Made(None)
    now = now or datetime.now(UTC)
    try:
        for sign in signs:  # each is written last, so a folder that has it is complete
            sign.unlink(missing_ok=True)
        authority = _Authority(now)
        for owner in ROLES:
            (folder / owner).mkdir(parents=True, exist_ok=True)
            certificate, key = authority.issue(owner)
            _write(folder / owner / "tls.crt", certificate)
            _write(folder / owner / "tls.key", key)
            if owner not in CLIENTS:
                _write(folder / owner / "callers.yaml", _callers())
        _write_curve(folder)
        for sign in signs:
            _write(sign, authority.certificate)
    except OSError as error:
        raise SetupError(f"{error.filename} can't be written: {error.strerror}") from None
    return Made(now + timedelta(days=DAYS))


def _callers() -> bytes:
    entries = [{"client_id": owner, "role": role} for owner, role in ROLES.items() if role]
    return yaml.safe_dump({"callers": entries}, sort_keys=False).encode()


def _write_curve(folder: Path) -> None:
    for owner in (*CURVE, "desk"):
        for suffix in ("key", "key_secret"):
            (folder / owner / f"{owner}.{suffix}").unlink(missing_ok=True)
        public, _ = make_keys(folder / owner, owner)
        if owner in CURVE:
            name, to = CURVE[owner]
            (folder / to).mkdir(exist_ok=True)
            _write(folder / to / name, public.read_bytes())
    containers = [
        {"container": "relay", "client_id": "relay", "users": "*"},
        {"container": "desk", "curve": read_public_key(folder / "desk" / "desk.key").decode(), "users": "*"},
    ]
    _write(folder / "events" / "containers.yaml", yaml.safe_dump({"containers": containers}).encode())


def _write(path: Path, content: bytes) -> None:
    """Replace a file, which only its owner may read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


class _Authority:
    """Authority that lives as long as this process."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("dexorder")
        limits = x509.BasicConstraints(ca=True, path_length=0)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
        made = self._builder(self._name, self._key.public_key())
        made = made.add_extension(limits, critical=True).add_extension(usage, critical=True)
        self.certificate = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, owner: str) -> tuple[bytes, bytes]:
        """Return certificate and key for both sides of connections, of a host of that name or of this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName(owner), x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        sides = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        made = self._builder(_name(owner), key.public_key())
        made = made.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        made = made.add_extension(sides, critical=False)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), private

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - timedelta(hours=1))  # clocks differ
            .not_valid_after(self._now + timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
