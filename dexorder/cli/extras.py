"""Extras of the package: what to install when a command needs a package that is missing."""

from __future__ import annotations

EXTRAS = {
    "pg8000": "lake",
    "pyarrow": "lake",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "plotly": "chart",
    "zmq": "events",
}
"""Extra that brings a module; ``suite`` brings all that are not listed."""
_OTHERS = frozenset(
    {
        "aiohttp",
        "aiosmtplib",
        "ccxt",
        "confluent_kafka",
        "firebase_admin",
        "grpc_channelz",
        "grpc_health",
        "grpc_reflection",
        "jwt",
        "numpy",
        "prometheus_client",
        "ptars",
        "pyspark",
        "pywebpush",
        "uvloop",
    }
)


def missing_package(error: ModuleNotFoundError, extra: str | None = None) -> str | None:
    """Return what to install, by default the extra of the module; None if the module comes with no extra."""
    module = (error.name or "").partition(".")[0]
    if module not in _OTHERS and module not in EXTRAS:
        return None
    return f"the module {module} is not installed: pip install 'dexorder[{extra or EXTRAS.get(module, 'suite')}]'"
