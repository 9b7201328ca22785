"""Facts that a server gives about itself: version, services, datasets, capabilities and limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

CAPABILITIES = {"cursor-epochs": "0.1.0", "funding": "0.1.0", "repair-values": "0.1.0"}
"""The version that introduced each ability that a client can't see from the services; docs/api.md explains them."""
FIRST_VERSION = "0.1.0"
"""The first version with servers that answer GetServerInfo."""


class Stability(StrEnum):
    """How much a service may still change; docs/api.md has the rules."""

    ALPHA = "alpha"
    BETA = "beta"
    STABLE = "stable"
    UNKNOWN = "unknown"
    """A level that this client does not know."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts about a server, which do not change while it runs.

    Attributes:
        part: Part of the suite, for example ``relay``.
        version: Version of the suite; ``unknown`` for a checkout that is not installed.
        services: Stability of each service, by its full name.
        datasets: Names of the datasets that the server knows.
        capabilities: Names of its optional abilities, ascending.
        limits: Limits that its settings give, by the name of the setting.
    """

    part: str
    version: str
    services: Mapping[str, Stability]
    datasets: tuple[str, ...]
    capabilities: tuple[str, ...]
    limits: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def is_older(version: str, other: str) -> bool:
    """Return whether a version is older than another; False if one of them is not made of numbers."""
    numbers, others = _numbers(version), _numbers(other)
    return bool(numbers and others) and numbers < others


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version, without a suffix such as ``rc1``, ``.dev3`` or ``+local``."""
    parts = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        parts.append(int(digits))
        if digits != part:
            break
    return tuple(parts)
