"""The packages of the suite: their version, and their folders for Spark's workers and zip files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGES = (
    "dexorder",
    "dexorder_cep",
    "dexorder_common",
    "dexorder_exchange_sim",
    "dexorder_gateway",
    "dexorder_ingestor",
    "dexorder_protos",
    "dexorder_relay",
    "dexorder_spark",
    "dexorder_udf",
    "dexorder_udsource",
)
"""Every package that the wheel installs."""


def package_folders() -> list[Path]:
    """Return the folder of each package, in the order of PACKAGES."""
    return [Path(spec.origin).parent for name in PACKAGES if (spec := find_spec(name)) is not None and spec.origin]


def import_roots() -> list[str]:
    """Return the folders for PYTHONPATH that hold the packages: several in a checkout, one if a wheel is installed."""
    return list(dict.fromkeys(str(folder.parent) for folder in package_folders()))


def version() -> str:
    """Return the version of the installed distribution; "unknown" in a checkout that is not installed."""
    import importlib.metadata  # it takes longer than all that completion needs

    try:
        return importlib.metadata.version("dexorder")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def install_command(extra: str) -> str:
    """Return the command that adds an extra from the wheel of this version; no package index has ``dexorder``."""
    return f"pip install 'dexorder-{version()}-py3-none-any.whl[{extra}]'"
