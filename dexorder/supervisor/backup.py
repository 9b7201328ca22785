"""Backup of a stopped suite's folder to one file, and its restore.

The whole folder is copied: requests, tables, and Kafka's log refer to each other, so one part beside
older ones would lose data or fetch it again. The archive is a gzipped tar; its last member lists every file with its
SHA-256. Iceberg's metadata names files by their full path, so a backup is restored to the folder it was taken from.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dexorder.errors import SuiteFailed
from dexorder.supervisor.prepare import suite_lock
from dexorder_common.storage.state_checks import LAST_BACKUP

MANIFEST = "dexorder-backup.json"
FORMAT = 1
INCOMING = ".restoring"
LEFT_OUT = frozenset({"tmp", "logs", "suite.lock", "suite.json", LAST_BACKUP, INCOMING})
"""Top-level names that are not part of the state."""
OnFile = Callable[[str, int], None]
"""Receives the name and size of each file."""
Agree = Callable[["Contents"], bool]


@dataclass(frozen=True)
class Contents:
    """Summary of an archive."""

    directory: Path
    files: int
    size_bytes: int


class _Hashing(io.RawIOBase):
    """File that is hashed while it is read."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        return data


def backup(directory: Path, archive: Path, on_file: OnFile = lambda *_: None) -> Contents:
    """Write the folder of a stopped suite to ``archive``, completely or not at all.

    Raises:
        SuiteFailed: The suite runs, the folder is not a suite's, or the archive exists or is inside the folder.
    """
    if not (directory / "suite.lock").is_file():
        raise SuiteFailed(f"{directory} is not the folder of a suite")
    if archive.exists() or archive.absolute().is_relative_to(directory):
        raise SuiteFailed(f"{archive} exists or is inside {directory}: choose another file")
    partial = archive.with_name(archive.name + ".partial")
    files: dict[str, str] = {}
    size = 0
    try:
        with suite_lock(directory), tarfile.open(partial, mode="w:gz", compresslevel=1) as tar:
            for path in _files(directory):
                name = str(path.relative_to(directory))
                files[name] = _add(tar, path, name)
                size += path.stat().st_size
                on_file(name, path.stat().st_size)
            _add_manifest(tar, {"format": FORMAT, "directory": str(directory), "files": files})
        partial.replace(archive)
        (directory / LAST_BACKUP).write_text(f"{archive.absolute()}\n")
    finally:
        partial.unlink(missing_ok=True)
    return Contents(directory, len(files), size)


def restore(archive: Path, target: Path, agree: Agree = lambda _: True, on_file: OnFile = lambda *_: None) -> Contents:
    """Restore a suite to its folder after every file of the archive was verified. Writes only inside the folder.

    Args:
        target: The folder that the archive was made from: Iceberg's metadata names it.
        agree: Receives a description of the backup, and returns whether to restore it.

    Raises:
        SuiteFailed: The archive is not a backup, is damaged or of another folder, the folder is not empty, or
            ``agree`` has returned False.
    """
    contents, files = inspect(archive)
    if contents.directory != target:
        raise SuiteFailed(
            f"{archive} is a backup of {contents.directory}, not of {target}; to restore it there: "
            f"--dir {contents.directory}"
        )
    if target.exists() and any(each.name != INCOMING for each in target.iterdir()):
        raise SuiteFailed(f"{target} is not empty: move it away first; a backup is restored to the same path")
    if not agree(contents):
        raise SuiteFailed("nothing was restored")
    incoming = target / INCOMING
    shutil.rmtree(incoming, ignore_errors=True)  # of a restore that was killed
    try:
        with _open(archive) as tar:
            for member in tar:
                if member.name in files:
                    _extract(tar, member, incoming)
                    on_file(member.name, member.size)
        for each in sorted(incoming.iterdir()):
            each.replace(target / each.name)
        (target / "suite.lock").touch()
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return contents


def inspect(archive: Path) -> tuple[Contents, dict[str, str]]:
    """Return the summary of an archive and the SHA-256 of each file; SuiteFailed if it is not a backup or damaged."""
    found: dict[str, str] = {}
    size, manifest = 0, None
    with _open(archive) as tar:
        for member in tar:
            data = tar.extractfile(member)
            if data is None:
                raise SuiteFailed(f"{archive}: {member.name} is not a file")
            if member.name == MANIFEST:
                manifest = json.loads(data.read())
            else:
                found[member.name] = hashlib.file_digest(data, "sha256").hexdigest()  # type: ignore[arg-type]
                size += member.size
    if manifest is None or manifest.get("format") != FORMAT:
        raise SuiteFailed(f"{archive} is not a complete backup of a suite: its list of files is missing")
    if damaged := sorted(
        name for name in {*found, *manifest["files"]} if found.get(name) != manifest["files"].get(name)
    ):
        raise SuiteFailed(f"{archive} is damaged: {damaged[0]} and {len(damaged) - 1} more files differ from its list")
    return Contents(Path(manifest["directory"]), len(found), size), found


def _files(directory: Path) -> Iterator[Path]:
    for top in sorted(directory.iterdir()):
        if top.name not in LEFT_OUT:
            yield from sorted(p for p in (top.rglob("*") if top.is_dir() else [top]) if p.is_file())


def _add(tar: tarfile.TarFile, path: Path, name: str) -> str:
    with path.open("rb") as source:
        hashing = _Hashing(source)
        tar.addfile(tar.gettarinfo(path, name), hashing)
        return hashing.digest.hexdigest()


def _add_manifest(tar: tarfile.TarFile, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a file below a folder, as `tarfile` does with ``filter="data"``, which Python 3.11.3 does not have."""
    path = folder / member.name
    data = tar.extractfile(member)
    if data is None or not path.resolve().is_relative_to(folder.resolve()):
        raise tarfile.TarError(f"{member.name!r} is not a file below the folder of the backup")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        shutil.copyfileobj(data, file)
    path.chmod(member.mode & 0o755 | 0o600)
    os.utime(path, (member.mtime, member.mtime))


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive for one sequential read; any error of its bytes becomes a SuiteFailed."""
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            yield tar
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise SuiteFailed(f"{archive} can't be read as a backup: {error}") from None
