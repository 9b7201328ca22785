from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

from dexorder.errors import SuiteFailed
from dexorder.supervisor.backup import FORMAT, MANIFEST, Contents, backup, inspect, restore
from dexorder.supervisor.prepare import suite_lock
from dexorder_common.storage.state_checks import restore_hint

FILES = {
    "relay.db": b"requests",
    "relay.db-wal": b"",
    "warehouse/trading/ohlc/data/1.parquet": b"PAR1" * 50_000,
    "kafka/meta.properties": b"x=1",
    "catalog.db": b"v1",
}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    for name, content in {
        **FILES,
        "tmp/scratch": b"1",
        "logs/relay.log": b"2",
        "suite.lock": b"",
        "suite.json": b"{}",
    }.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_restored_folder_has_every_file_but_what_a_suite_makes_anew(suite: Path, tmp_path: Path) -> None:
    told: list[str] = []
    made = backup(suite, tmp_path / "b.tar.gz", lambda name, _: told.append(name))
    shutil.rmtree(suite)
    asked: list[Contents] = []

    def refuse(shown: Contents) -> bool:
        asked.append(shown)
        return False

    with pytest.raises(SuiteFailed, match="nothing was restored"):
        restore(tmp_path / "b.tar.gz", suite, refuse)
    assert asked == [made] and not suite.exists(), "it shows first, and writes then"
    assert restore(tmp_path / "b.tar.gz", suite).directory == suite
    assert contents(suite) == {**FILES, "suite.lock": b""}
    assert (made.files, sorted(told)) == (len(FILES), sorted(FILES))


def test_running_suite_is_refused(suite: Path, tmp_path: Path) -> None:
    with suite_lock(suite), pytest.raises(SuiteFailed, match="in use"):
        backup(suite, tmp_path / "b.tar.gz")
    assert list(tmp_path.glob("b.tar*")) == []


def test_restore_refuses_a_folder_with_files(suite: Path, tmp_path: Path) -> None:
    backup(suite, tmp_path / "b.tar.gz")
    before = contents(suite)
    with pytest.raises(SuiteFailed, match="not empty"):
        restore(tmp_path / "b.tar.gz", suite)
    assert contents(suite) == before


def test_an_archive_of_another_folder_writes_nowhere(suite: Path, tmp_path: Path) -> None:
    """The archive says where it belongs; only the caller's folder is written to."""
    backup(suite, tmp_path / "b.tar.gz")
    shutil.rmtree(suite)
    mine = tmp_path / "mine"
    with pytest.raises(SuiteFailed, match=f"is a backup of {suite}, not of {mine}; to restore it there: --dir {suite}"):
        restore(tmp_path / "b.tar.gz", mine)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tar.gz"]


def test_a_restore_that_was_killed_is_repeated_and_no_other_folder_is_removed(suite: Path, tmp_path: Path) -> None:
    backup(suite, tmp_path / "b.tar.gz")
    shutil.rmtree(suite)
    beside = tmp_path / "state.restoring"
    beside.mkdir()
    (beside / "mine").write_text("precious")
    (suite / ".restoring").mkdir(parents=True)
    (suite / ".restoring" / "relay.db").write_bytes(b"half")
    restore(tmp_path / "b.tar.gz", suite)
    assert contents(suite) == {**FILES, "suite.lock": b""} and (beside / "mine").read_text() == "precious"


@pytest.mark.parametrize("name", ["../escaped", "relay/../../../escaped"])
def test_a_file_of_an_archive_is_written_below_the_folder_only(suite: Path, tmp_path: Path, name: str) -> None:
    data, archive = b"from outside", tmp_path / "hostile.tar.gz"
    manifest = {"format": FORMAT, "directory": str(suite), "files": {name: hashlib.sha256(data).hexdigest()}}
    with tarfile.open(archive, "w:gz") as tar:
        for member, content in ((name, data), (MANIFEST, json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    shutil.rmtree(suite)
    with pytest.raises(SuiteFailed, match="escaped"):
        restore(archive, suite)
    assert not list(tmp_path.rglob("escaped"))


def test_the_folder_knows_its_newest_backup(suite: Path, tmp_path: Path) -> None:
    for name in ("a.tar.gz", "b.tar.gz"):
        backup(suite, tmp_path / name)
    assert restore_hint(suite / "relay.db").endswith(f"dexorder restore {tmp_path}/b.tar.gz --dir {suite}")
    assert restore_hint(tmp_path / "relay.db").startswith("no backup of its folder is known")


@pytest.mark.parametrize("where", ["inside", "there"])
def test_archive_must_be_a_new_file_outside_the_folder(suite: Path, tmp_path: Path, where: str) -> None:
    archive = suite / "b.tar.gz" if where == "inside" else tmp_path / "b.tar.gz"
    if where == "there":
        archive.write_bytes(b"precious")
    with pytest.raises(SuiteFailed, match="choose another file"):
        backup(suite, archive)
    assert where == "inside" or archive.read_bytes() == b"precious"


def test_folder_without_a_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteFailed, match="not the folder of a suite"):
        backup(tmp_path, tmp_path.parent / "b.tar.gz")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_truncated_archive_restores_nothing(suite: Path, tmp_path: Path, keep: float) -> None:
    archive = tmp_path / "b.tar.gz"
    backup(suite, archive)
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * keep)])
    shutil.rmtree(suite)
    with pytest.raises(SuiteFailed):
        restore(archive, suite)
    assert not suite.exists()


def test_changed_byte_is_detected_and_its_file_named(suite: Path, tmp_path: Path) -> None:
    archive = tmp_path / "b.tar.gz"
    backup(suite, archive)
    plain = bytearray(gzip.decompress(archive.read_bytes()))
    plain[plain.index(b"requests")] ^= 1
    archive.write_bytes(gzip.compress(bytes(plain)))
    with pytest.raises(SuiteFailed, match=r"damaged: relay\.db "):
        inspect(archive)


def test_other_file_is_not_a_backup(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_bytes(b"hello")
    with pytest.raises(SuiteFailed, match="can't be read as a backup"):
        restore(tmp_path / "b.tar.gz", tmp_path / "state")
