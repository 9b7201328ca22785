"""Lists of jars: jars.toml has the requested ones, jars.lock all resolved ones with checksums. No network."""

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from dexorder.setup.config import SetupError

_COORDINATE = re.compile(r"^[\w.-]+:[\w.-]+:[\w.-]+(:[\w.-]+)?$")
_SHA256 = re.compile(r"^[0-9a-f]{64}$")
_LOCK_HEADER = (
    "# Made by `python -m dexorder.setup lock` from jars.toml: each jar of each set, with SHA-256 and size.\n"
)


@dataclass(frozen=True)
class WantedSet:
    """Table of jars.toml.

    ``transitive`` includes the run-time dependencies; an ``optional`` set is downloaded only by its name.
    """

    name: str
    coordinates: tuple[str, ...]
    transitive: bool
    optional: bool = False


@dataclass(frozen=True)
class LockedJar:
    """Resolved jar.

    Attributes:
        coordinate: ``group:artifact:version[:classifier]``.
        sha256: Of its file, in lower-case hex.
        size_bytes: Of its file; for the progress of a download.
    """

    coordinate: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """Return the name of the file in a set's folder."""
        return jar_file_name(self.coordinate)


def jar_file_name(coordinate: str) -> str:
    """Return ``artifact-version.jar`` for ``group:artifact:version``, ``artifact-version-classifier.jar`` with one."""
    return f"{'-'.join(coordinate.split(':')[1:])}.jar"


def parse_wanted(text: str) -> dict[str, WantedSet]:
    """Read jars.toml; SetupError names a table that lacks a field or a malformed coordinate."""
    wanted = {}
    for name, table in tomllib.loads(text).items():
        coordinates, transitive = table.get("coordinates"), table.get("transitive")
        if not isinstance(coordinates, list) or not coordinates or not isinstance(transitive, bool):
            raise SetupError(f"jars.toml: [{name}] needs `coordinates` (a list) and `transitive` (true or false)")
        for coordinate in coordinates:
            _check_coordinate("jars.toml", coordinate)
        wanted[name] = WantedSet(name, tuple(coordinates), transitive, optional=table.get("optional", False) is True)
    return wanted


def parse_lock(text: str) -> dict[str, tuple[LockedJar, ...]]:
    """Read jars.lock; SetupError if a coordinate, checksum or size is malformed, or two jars of a set share a name."""
    locked = {}
    for name, table in tomllib.loads(text).items():
        jars = tuple(_locked_jar(coordinate, fields) for coordinate, fields in table.items())
        if len({jar.file_name for jar in jars}) < len(jars):
            raise SetupError(f"jars.lock: two jars of [{name}] share a file name")
        locked[name] = jars
    return locked


def _locked_jar(coordinate: str, fields: object) -> LockedJar:
    _check_coordinate("jars.lock", coordinate)
    values = fields if isinstance(fields, dict) else {}
    sha256, size_bytes = values.get("sha256"), values.get("bytes")
    if not _SHA256.match(str(sha256)):
        raise SetupError(f"jars.lock: {coordinate}: sha256 {sha256!r} is not a SHA-256 in lower-case hex")
    if not isinstance(size_bytes, int) or size_bytes < 1:
        raise SetupError(f"jars.lock: {coordinate}: bytes {size_bytes!r} is not a number of bytes")
    return LockedJar(coordinate, str(sha256), size_bytes)


def render_lock(locked: dict[str, tuple[LockedJar, ...]]) -> str:
    """Return the text of jars.lock, sorted, so that a changed jar is one changed line."""
    tables = []
    for name, jars in sorted(locked.items()):
        lines = sorted(f'"{jar.coordinate}" = {{sha256 = "{jar.sha256}", bytes = {jar.size_bytes}}}\n' for jar in jars)
        tables.append(f"\n[{name}]\n{''.join(lines)}")
    return _LOCK_HEADER + "".join(tables)


def check_folder(folder: Path, jars: tuple[LockedJar, ...]) -> list[str]:
    """Compare a folder with the lock. Return a phrase for each difference, which names the jar or the unknown file."""
    problems = []
    for jar in jars:
        path = folder / jar.file_name
        if not path.is_file():
            problems.append(f"{jar.coordinate} is missing")
        elif file_sha256(path) != jar.sha256:
            problems.append(f"{jar.coordinate} differs from the pinned SHA-256")
    known = {jar.file_name for jar in jars}
    unknown = sorted(path.name for path in folder.glob("*.jar") if path.name not in known)
    return problems + [f"{name} is not in jars.lock" for name in unknown]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_coordinate(where: str, coordinate: object) -> None:
    if not isinstance(coordinate, str) or not _COORDINATE.match(coordinate):
        raise SetupError(f"{where}: {coordinate!r} is not of the form group:artifact:version[:classifier]")
