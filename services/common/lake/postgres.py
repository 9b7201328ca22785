"""PostgreSQL through pg8000, told about TLS in the words that libpq and JDBC use: ``?sslmode=…&sslrootcert=…``."""

from __future__ import annotations

import ssl
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url

DRIVER = "postgresql+pg8000"
TIMEOUT_SECONDS = 30.0
"""Longest wait for an answer; a catalog's statements touch a few rows."""


def with_driver(uri: str) -> str:
    """The URI with the driver that we bring, if it is one of PostgreSQL's and names none."""
    return uri.replace("postgresql:", f"{DRIVER}:", 1) if uri.startswith("postgresql:") else uri


def with_password(uri: str, password: str) -> str:
    """A PostgreSQL URI with this password; any other URI, and one that has a password, as it is."""
    if not uri.startswith("postgresql"):
        return uri
    url = make_url(uri)
    return uri if url.password else url.set(password=password).render_as_string(hide_password=False)


def tls_context(sslmode: str | None, sslrootcert: str | None) -> ssl.SSLContext | bool | None:
    """What pg8000 takes as ``ssl_context``: False is no TLS, None is TLS if offered, True is TLS without any check.

    Args:
        sslmode: disable, allow, prefer, require, verify-ca or verify-full; None is prefer.
        sslrootcert: PEM file of the authority; None or ``system`` trusts the machine's.

    Raises:
        ValueError: Another mode.
    """
    match sslmode:
        case "disable":
            return False
        case None | "allow" | "prefer":
            return None
        case "require":
            return True
        case "verify-ca" | "verify-full":
            context = ssl.create_default_context(cafile=None if sslrootcert == "system" else sslrootcert)
            context.check_hostname = sslmode == "verify-full"
            return context
    raise ValueError(f"sslmode {sslmode!r} is not one of disable, allow, prefer, require, verify-ca, verify-full")


@event.listens_for(Engine, "do_connect")
def _connect(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
    # pyiceberg makes the engine from the URI alone, and pg8000 takes its own names and types only
    if dialect.driver != "pg8000":
        return
    if "ssl_context" not in parameters:
        parameters["ssl_context"] = tls_context(parameters.pop("sslmode", None), parameters.pop("sslrootcert", None))
    parameters["timeout"] = float(parameters.get("timeout", TIMEOUT_SECONDS))
