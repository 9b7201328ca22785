"""Progress of a download, as the files of Maven and Ivy show it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dexorder.setup import progress, resolve
from dexorder.setup.manifest import LockedJar
from dexorder.setup.progress import arrived, describe, repeated, reported

BIG = LockedJar("org.a:big_2.13:1.0", "0" * 64, 48_300_000)
SMALL = LockedJar("org.b:small:2:runner", "0" * 64, 1_700_000)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("org/a/big_2.13/1.0/big_2.13-1.0.jar.part", 1_000),
        ("org/a/big_2.13/1.0/big_2.13-1.0.jar.8842.tmp", 1_000),
        ("org/a/big_2.13/1.0/big_2.13-1.0.jar", 1_000),
        ("org.a/big_2.13/jars/big_2.13-1.0.jar.part", 1_000),
        ("org.a/big_2.13/bundles/big_2.13-1.0.jar", 1_000),
        ("org/a/big_2.13/1.0/big_2.13-1.0.jar.sha1", 0),
        ("org/a/big_2.13/1.0/big_2.13-1.0.jar.part.lock", 0),
        ("org/a/big_2.13/1.0/big_2.13-1.0-sources.jar", 0),
        ("org/a/big_2.13/1.1/big_2.13-1.1.jar", 0),
    ],
)
def test_bytes_of_a_jar_are_those_of_its_finished_or_unfinished_file(tmp_path: Path, file: str, found: int) -> None:
    place = tmp_path / file
    place.parent.mkdir(parents=True)
    place.write_bytes(b"x" * 1_000)
    assert arrived(BIG, tmp_path) == found


def test_a_classifier_is_part_of_the_name_and_no_more_than_the_jar_arrives(tmp_path: Path) -> None:
    jar = LockedJar("org.b:small:2:runner", "0" * 64, 4)
    folder = tmp_path / "org" / "b" / "small" / "2"
    folder.mkdir(parents=True)
    (folder / "small-2.jar").write_bytes(b"other")
    assert arrived(jar, tmp_path) == 0
    (folder / "small-2-runner.jar").write_bytes(b"12345")
    assert arrived(jar, tmp_path) == 4


@pytest.mark.parametrize(
    ("present", "text"),
    [
        ([0, 0], "waiting for the first of 50.0 MB"),
        ([22_800_000, 0], "22.8 of 50.0 MB; big_2.13-1.0.jar 22.8 of 48.3 MB"),
        (
            [22_800_000, 300_000],
            "23.1 of 50.0 MB; big_2.13-1.0.jar 22.8 of 48.3 MB; small-2-runner.jar 0.3 of 1.7 MB",
        ),
        ([48_300_000, 1_700_000], "all 50.0 MB are here, and are checked"),
    ],
)
def test_progress_is_that_of_all_jars_and_of_those_that_are_arriving(present: list[int], text: str) -> None:
    assert describe([BIG, SMALL], present) == text


def test_progress_is_reported_while_the_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.001)
    lines: list[str] = []
    twice = threading.Event()

    def report(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            twice.set()

    with reported("spark", [BIG], tmp_path, report):
        assert twice.wait(60)
    count = len(lines)
    assert set(lines) == {"jars spark: waiting for the first of 48.3 MB"}
    assert not any(each.name == "jars-progress" for each in threading.enumerate()) and len(lines) == count


def test_nothing_is_reported_of_jars_that_nobody_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "Thread", None)  # none is started
    with reported("spark", [], tmp_path, lambda _: None):
        pass


@pytest.mark.parametrize(
    ("settings", "options", "repository"),
    [
        ("", "", "/h/.m2/repository"),
        ("<settings><localRepository> ${user.home}/repo </localRepository></settings>", "", "/h/repo"),
        ("<settings><localRepository>/m</localRepository></settings>", "-Xmx1g -Dmaven.repo.local=/o -q", "/o"),
    ],
)
def test_local_repository_of_maven(settings: str, options: str, repository: str) -> None:
    assert resolve.maven_repository(settings, options, Path("/h")) == Path(repository)


def test_each_resolver_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAVEN_OPTS", "-Dmaven.repo.local=/repo")
    assert resolve.download_folder(resolve.maven, tmp_path) == Path("/repo")
    assert resolve.download_folder(resolve.ivy, tmp_path) == tmp_path / "ivy-cache"


def test_a_line_is_repeated_until_the_block_ends() -> None:
    said: list[int] = []
    third = threading.Event()

    def say() -> None:
        said.append(len(said))
        if len(said) == 3:
            third.set()

    with repeated(say, interval_s=0.01):
        assert third.wait(60)
    assert not [each for each in threading.enumerate() if each.name == "progress"]
