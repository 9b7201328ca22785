"""Certificate authority for tests, with certificates of servers and clients as files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Pair:
    """Certificate and key as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Certificate authority; ``ca`` is its own certificate as a PEM file."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        made = _builder(self._name, self._name, self._key).add_extension(constraints, critical=True)
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def server(self) -> Pair:
        """Issue a server certificate for 127.0.0.1 and localhost."""
        names: list[x509.GeneralName] = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        return self._sign("server", "server", names, ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str, *, also: tuple[str, ...] = (), days: int = 1) -> Pair:
        """Issue a client certificate; an empty name means no common name, negative days an expired one."""
        names: list[x509.GeneralName] = [x509.DNSName(other) for other in also]
        return self._sign(name or "-".join(also), name, names, ExtendedKeyUsageOID.CLIENT_AUTH, days=days)

    def workload(self, uri: str) -> Pair:
        """Issue what a mesh gives a workload: a certificate for both sides of a connection, with a URI only."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        usages = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
        return self._sign(uri.replace("/", "_"), "", names, *usages)

    def _sign(
        self, file: str, name: str, names: list[x509.GeneralName], *usages: x509.ObjectIdentifier, days: int = 1
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key, days)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        pair = Pair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        pair.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int = 1
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
    )
