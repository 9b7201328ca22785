"""Spark home without the archive of pyspark."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from dexorder_spark.runtime import class_archive
from dexorder_spark.runtime.class_archive import home_environment, write_home


def test_a_home_has_sparks_programs_and_jars_but_no_archive_of_python(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    assert home_environment(folder) == {}, "it was not created"
    for _ in range(2):
        write_home(folder)
    assert home_environment(folder) == {"SPARK_HOME": str(folder)}
    assert sorted(each.name for each in folder.iterdir()) == ["bin", "jars"]
    assert (folder / "jars").samefile(Path(pyspark.__file__).parent / "jars")


def test_links_of_a_removed_installation_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to(tmp_path / "removed")
    assert home_environment(tmp_path) == {}
    write_home(tmp_path)
    assert home_environment(tmp_path)


def test_a_python_that_needs_the_archive_gets_sparks_own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_home(tmp_path)
    monkeypatch.setattr(class_archive, "find_spec", lambda name: None)
    assert home_environment(tmp_path) == {}
