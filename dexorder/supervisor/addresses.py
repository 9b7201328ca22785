"""Addresses of the suite that runs on this machine, for clients that are given none.

``dexorder up`` describes itself in its folder and in the user's state folder. A client without an address, as argument
or in its variable, calls the suite in ``DEXORDER_DIR`` or ``./dexorder-data``, else one that is registered, else the
default ports.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from dexorder.errors import DexorderError
from dexorder.supervisor.state import SuiteState, default_directory, registered_directories, running_suite


class Target(NamedTuple):
    """Port that clients connect to."""

    part: str
    port: str
    """Name in `Ports`."""
    variable: str
    """Environment variable with its address."""
    default: str
    """Address on the default ports."""


RELAY = Target("relay", "relay", "DEXORDER_RELAY", "127.0.0.1:50051")
SPARK = Target("spark", "spark", "DEXORDER_SPARK_ADDRESS", "127.0.0.1:50055")
GATEWAY = Target("gateway", "gateway", "DEXORDER_GATEWAY_ADDRESS", "127.0.0.1:50053")
EVENTS_FAST = Target("gateway", "events_sub", "DEXORDER_PUBLISHER_FAST", "tcp://127.0.0.1:5570")
EVENTS_GUARANTEED = Target("gateway", "events_router", "DEXORDER_PUBLISHER_GUARANTEED", "tcp://127.0.0.1:5571")


def address_of(target: Target, given: str | None) -> str:
    """Return the address: as given, else its variable's, else the address of the suite on this machine.

    Raises:
        DexorderError: Several suites run here, but not in this folder or on the default ports.
    """
    if named := given or os.environ.get(target.variable):
        return named
    for directories in ([default_directory()], registered_directories()):
        if addresses := {_address(suite, target) for each in directories if (suite := running_suite(each))}:
            return choose(target, addresses)
    return target.default


def choose(target: Target, addresses: set[str]) -> str:
    """Return the address on the default ports if it is one of them, else the only one; else DexorderError."""
    if target.default in addresses:
        return target.default
    if len(addresses) > 1:
        listed = ", ".join(sorted(addresses))
        raise DexorderError(f"several suites run here: set {target.variable} to the address of one, of {listed}")
    return next(iter(addresses))


def _address(suite: SuiteState, target: Target) -> str:
    part = suite.parts.get(target.part)
    if part is None or target.port not in part.ports:
        return target.default
    scheme = "tcp://" if target.default.startswith("tcp://") else ""
    return scheme + part.ports[target.port]
