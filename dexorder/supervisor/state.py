"""State of a running suite on disk, DIR/suite.json and a registry entry by the relay's port, and its addresses.

``dexorder up`` describes itself in its folder and in the user's state folder. A client without an address, as argument
or in its variable, calls the suite in ``DEXORDER_DIR`` or ``./dexorder-data``, else one that is registered, else the
default ports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dexorder.errors import DexorderError, SuiteFailed
from dexorder_common.config import state_folder
from dexorder_common.storage.whole_file import replace_text

SUITE_FILE = "suite.json"


@dataclass(frozen=True)
class PartState:
    """State of one part of a running suite."""

    address: str
    health: str
    pid: int | None = None
    """Id of the process; None while it does not run."""
    state: str = "waiting"
    """waiting, starting, ready, restarting, failing (died five times in quick succession) or stopped."""
    restarts: int = 0
    detail: str = ""
    """Reason of its last death; empty if it never died."""
    ports: Mapping[str, str] = field(default_factory=dict)
    """host:port of each port on which it listens, by the name in `Ports`."""


@dataclass(frozen=True)
class SuiteState:
    """Content of suite.json."""

    pid: int
    started_at: str
    relay: str
    parts: Mapping[str, PartState] = field(default_factory=dict)


def write_state(directory: Path, state: SuiteState) -> None:
    """Replace DIR/suite.json atomically."""
    _write(directory / SUITE_FILE, asdict(state))


def read_state(directory: Path) -> SuiteState | None:
    """Return the content of DIR/suite.json, or None without the file."""
    try:
        raw = json.loads((directory / SUITE_FILE).read_text())
        parts = {name: PartState(**part) for name, part in raw.pop("parts").items()}
        return SuiteState(**raw, parts=parts)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise SuiteFailed(f"{directory / SUITE_FILE} is not a valid suite state: {error}") from None


def remove_state(directory: Path) -> None:
    """Remove DIR/suite.json after the suite has stopped."""
    (directory / SUITE_FILE).unlink(missing_ok=True)


def register(relay_port: int, directory: Path) -> None:
    """Make the suite's folder known by the relay's port."""
    entry = _entry(relay_port)
    entry.parent.mkdir(parents=True, exist_ok=True)
    _write(entry, {"dir": str(directory)})


def unregister(relay_port: int, directory: Path) -> None:
    """Remove the entry if it belongs to this suite."""
    if registered(relay_port) == directory:
        _entry(relay_port).unlink(missing_ok=True)


def registered(relay_port: int) -> Path | None:
    """Return the folder of the suite with its relay on this port, or None."""
    try:
        return Path(json.loads(_entry(relay_port).read_text())["dir"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


def registered_directories() -> list[Path]:
    """Return the folders of all suites that this user has registered; some may no longer run."""
    folder = state_folder() / "suites"
    ports = [int(entry.stem) for entry in folder.glob("*.json") if entry.stem.isdigit()] if folder.is_dir() else []
    return [directory for port in sorted(ports) if (directory := registered(port)) is not None]


def find_directory(directory: Path | None, relay: str | None) -> Path | None:
    """Return the suite's folder by ``--dir``, ``DEXORDER_DIR`` or the relay's port, else here, else the only one."""
    if directory or os.environ.get("DEXORDER_DIR"):
        return (directory or default_directory()).absolute()
    port = (relay or os.environ.get("DEXORDER_RELAY") or "127.0.0.1:50051").rpartition(":")[2]
    found = registered(int(port)) if port.isdigit() else None
    if found is not None or relay:
        return found
    if (default_directory() / SUITE_FILE).is_file():
        return default_directory()
    running = [each for each in registered_directories() if running_suite(each) is not None]
    return running[0] if len(running) == 1 else None


def running_suite(directory: Path) -> SuiteState | None:
    """Return the state of the suite that runs in a folder; None without one, or if its state is unreadable."""
    try:
        suite = read_state(directory)
    except (SuiteFailed, OSError):
        return None
    return suite if suite is not None and process_alive(suite.pid) else None


def default_directory() -> Path:
    """Return the absolute path of ``DEXORDER_DIR``, else of ``dexorder-data`` in the working folder."""
    return Path(os.environ.get("DEXORDER_DIR") or "dexorder-data").absolute()


def process_alive(pid: int | None) -> bool:
    """Return whether a process with this id runs; a zombie does not."""
    if pid is None:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # without /proc, only the signal's answer is known


def _entry(relay_port: int) -> Path:
    return state_folder() / "suites" / f"{relay_port}.json"


def _write(path: Path, content: Mapping[str, Any]) -> None:
    replace_text(path, json.dumps(content, indent=2) + "\n")


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
