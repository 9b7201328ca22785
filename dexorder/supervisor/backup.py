"""A stopped suite's folder in one file, and back. All of it together: requests, tables, Kafka's log and Spark's
checkpoint refer to each other, so a copy of one part beside older others would lose or ask again for data.

The archive is a gzipped tar; its last member lists every file with its SHA-256. Iceberg's metadata names its files by
their full path, so a backup goes back to the folder it came from.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dexorder.errors import SuiteFailed
from dexorder.supervisor.prepare import suite_lock

MANIFEST = "dexorder-backup.json"
FORMAT = 1
LEFT_OUT = frozenset({"tmp", "logs", "suite.lock", "suite.json"})
"""Top-level names a restored suite makes anew."""
OnFile = Callable[[str, int], None]
"""Told each file's name and size."""


@dataclass(frozen=True)
class Contents:
    """What an archive holds."""

    directory: Path
    files: int
    size_bytes: int


class _Hashing(io.RawIOBase):
    """A file that is hashed while something else reads it."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.digest = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.digest.update(data)
        return data


def backup(directory: Path, archive: Path, on_file: OnFile = lambda *_: None) -> Contents:
    """Write the folder of a stopped suite to ``archive``, whole or not at all.

    Raises:
        SuiteFailed: The suite runs, the folder is none, or the archive is there already or inside of it.
    """
    if not (directory / "suite.lock").is_file():
        raise SuiteFailed(f"{directory} is not the folder of a suite")
    if archive.exists() or archive.absolute().is_relative_to(directory):
        raise SuiteFailed(f"{archive} is there already, or inside {directory}: choose another file")
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
    finally:
        partial.unlink(missing_ok=True)
    return Contents(directory, len(files), size)


def restore(archive: Path, on_file: OnFile = lambda *_: None) -> Contents:
    """Bring the folder back where it was, once every file of the archive is proven whole.

    Raises:
        SuiteFailed: No backup of ours, damaged, or the folder it goes to is not empty.
    """
    contents, files = inspect(archive)
    target = contents.directory
    if target.exists() and any(target.iterdir()):
        raise SuiteFailed(f"{target} is not empty: move it away first; a backup goes back to the folder it came from")
    arriving = target.with_name(target.name + ".restoring")
    shutil.rmtree(arriving, ignore_errors=True)
    try:
        with _open(archive) as tar:
            for member in tar:
                if member.name in files:
                    tar.extract(member, arriving, filter="data")
                    on_file(member.name, member.size)
        (arriving / "suite.lock").touch()
        with suppress(FileNotFoundError):
            target.rmdir()
        arriving.replace(target)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    return contents


def inspect(archive: Path) -> tuple[Contents, dict[str, str]]:
    """Read an archive to its end and check every file; what it holds, and the SHA-256 of each.

    Raises:
        SuiteFailed: No backup of ours, cut short, or a file differs from its sum.
    """
    found: dict[str, str] = {}
    size, manifest = 0, None
    with _open(archive) as tar:
        for member in tar:
            data = tar.extractfile(member)
            if data is None:
                raise SuiteFailed(f"{archive}: {member.name} is no file")
            if member.name == MANIFEST:
                manifest = json.loads(data.read())
            else:
                found[member.name] = hashlib.file_digest(data, "sha256").hexdigest()  # type: ignore[arg-type]
                size += member.size
    if manifest is None or manifest.get("format") != FORMAT:
        raise SuiteFailed(f"{archive} is not a whole backup of a suite: its list of files is missing")
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


@contextmanager
def _open(archive: Path) -> Iterator[tarfile.TarFile]:
    """An archive to read through once; whatever is wrong with its bytes is one sentence."""
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            yield tar
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise SuiteFailed(f"{archive} can't be read as a backup: {error}") from None
