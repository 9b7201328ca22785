"""jars.toml, jars.lock and the check of a folder against it."""

import hashlib
from pathlib import Path

import pytest

from dexorder.setup import jars
from dexorder.setup.config import SetupError
from dexorder.setup.manifest import LockedJar, check_folder, parse_lock, parse_wanted, render_lock


def jar(coordinate: str, content: bytes) -> LockedJar:
    return LockedJar(coordinate, hashlib.sha256(content).hexdigest(), len(content))


ONE, TWO = jar("g:one:1.0", b"1"), jar("g.h:two_2.13:2.0.Final", b"2")


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        ({}, []),
        ({"one-1.0.jar": b"tampered"}, ["g:one:1.0 differs from the pinned SHA-256"]),
        ({"two_2.13-2.0.Final.jar": None}, ["g.h:two_2.13:2.0.Final is missing"]),
        ({"evil-1.jar": b"x"}, ["evil-1.jar is not in jars.lock"]),
    ],
    ids=["complete", "other content", "missing", "not pinned"],
)
def test_each_difference_of_a_folder_names_its_jar(
    tmp_path: Path, files: dict[str, bytes | None], problems: list[str]
) -> None:
    for name, data in {"one-1.0.jar": b"1", "two_2.13-2.0.Final.jar": b"2", **files}.items():
        if data is not None:
            (tmp_path / name).write_bytes(data)
    assert check_folder(tmp_path, (ONE, TWO)) == problems


def test_a_classifier_is_part_of_the_file_name(tmp_path: Path) -> None:
    runner = jar("g:one:1.0:runner", b"r")
    (tmp_path / "one-1.0-runner.jar").write_bytes(b"r")
    assert check_folder(tmp_path, (runner,)) == []


def test_lock_round_trip_is_sorted() -> None:
    text = render_lock({"b": (ONE, TWO), "a": (TWO,)})
    assert parse_lock(text) == {"a": (TWO,), "b": (TWO, ONE)}
    assert render_lock(parse_lock(text)) == text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (f'[s]\n"g:a:1" = "{ONE.sha256}"\n', "g:a:1: sha256 None"),
        ('[s]\n"g:a:1" = {sha256 = "abc", bytes = 1}\n', "g:a:1: sha256 'abc'"),
        (f'[s]\n"g:a:1" = {{sha256 = "{ONE.sha256}"}}\n', "g:a:1: bytes None"),
        (f'[s]\n"g:a" = {{sha256 = "{ONE.sha256}", bytes = 1}}\n', "g:a"),
        (f'[s]\n"g:../a:1" = {{sha256 = "{ONE.sha256}", bytes = 1}}\n', "g:../a:1"),
        (render_lock({"s": (ONE, jar("h:one:1.0", b"2"))}), "file name"),
    ],
)
def test_broken_lock_is_refused(text: str, names: str) -> None:
    with pytest.raises(SetupError, match=names):
        parse_lock(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[s]\ntransitive = true\n", "coordinates"),
        ('[s]\ncoordinates = ["g:a:1"]\n', "transitive"),
        ('[s]\ncoordinates = ["g:a"]\ntransitive = true\n', "'g:a'"),
    ],
)
def test_broken_list_is_refused(text: str, names: str) -> None:
    with pytest.raises(SetupError, match=names):
        parse_wanted(text)


def test_lock_of_the_project_matches_its_list() -> None:
    wanted, locked = parse_wanted(jars.WANTED_FILE.read_text()), parse_lock(jars.LOCK_FILE.read_text())
    assert set(wanted) == set(locked) == {"spark", "production", "nessie", "spark-kafka", "kafka"}
    assert jars.set_names() == ("spark", "kafka"), "what every suite needs"
    for name, each in wanted.items():
        assert set(each.coordinates) <= {found.coordinate for found in locked[name]}
    # The broker with its dependencies (55 jars), and a logging backend.
    assert len(locked["kafka"]) == 56
    assert "http" not in jars.WANTED_FILE.read_text()
