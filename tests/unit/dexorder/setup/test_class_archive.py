"""Archives of Java's classes: when they are used, and what is said when none can be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dexorder.setup import class_archive
from dexorder.setup.java import Java
from dexorder.supervisor import kafka

JAVA = Java(Path("/opt/java"), "21.0.1", "PATH")


@pytest.mark.parametrize(("name", "is_used"), [("a.jsa", True), ("with blank.jsa", False), ("missing.jsa", False)])
def test_an_archive_is_used_if_it_exists_at_a_path_that_java_options_can_have(
    tmp_path: Path, name: str, is_used: bool
) -> None:
    archive = tmp_path / name
    if name != "missing.jsa":
        archive.touch()
    options = class_archive.options_with(archive)
    assert (f"-XX:SharedArchiveFile={archive}" in options) == is_used
    assert bool(options) == is_used


def test_a_broker_and_the_tool_that_formats_use_the_archive_of_kafkas_version_and_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "kafka_2.13-3.9.1.jar").touch()
    archive = tmp_path / "share/dexorder/kafka_2.13-3.9.1-java-21.0.1.jsa"
    option = f"-XX:SharedArchiveFile={archive}"
    assert option not in kafka.kafka_command(JAVA, jars, tmp_path)
    archive.parent.mkdir(parents=True)
    archive.touch()
    for main in ("kafka.Kafka", "kafka.tools.StorageTool"):
        command = kafka.java_command(JAVA, jars, main, [], heap_mb=64)
        assert command.index(option) < command.index("-cp"), "an option of Java, not an argument of Kafka"


def test_an_archive_is_written_once_and_a_failure_says_the_last_line(tmp_path: Path) -> None:
    archive = tmp_path / "new" / "a.jsa"
    outcome = class_archive.ensure(archive, "no.such.module")
    assert outcome.startswith("not archived; starts take longer: ") and "no.such.module" in outcome
    assert not list(archive.parent.iterdir()), "nothing is left"
    archive.touch()
    assert class_archive.ensure(archive, "no.such.module") == "archived"


def test_a_start_writes_a_missing_archive_once_and_remembers_a_failure(tmp_path: Path) -> None:
    archive, said = tmp_path / "share" / "spark-1-java-21.jsa", list[str]()
    class_archive.ensure_once(archive, "no.such.module", said.append)
    assert said[0].startswith("classes of spark-1: loading and archiving them (once;")
    assert said[-1].startswith("classes of spark-1: not archived; starts take longer: ")
    steps = len(said)
    class_archive.ensure_once(archive, "no.such.module", said.append)
    assert len(said) == steps, "a failed attempt is not repeated"


@pytest.mark.parametrize("name", ["there.jsa", "with blank.jsa"])
def test_a_start_writes_no_archive_that_exists_or_could_not_be_used(tmp_path: Path, name: str) -> None:
    (tmp_path / "there.jsa").touch()
    said: list[str] = []
    class_archive.ensure_once(tmp_path / name, "no.such.module", said.append)
    assert said == []


def test_a_start_writes_no_archive_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    said: list[str] = []
    class_archive.ensure_once(tmp_path / "share" / "a.jsa", "no.such.module", said.append)
    assert said == [] and not list(tmp_path.iterdir())
