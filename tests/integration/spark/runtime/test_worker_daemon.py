"""Workers do not read Spark's archives of its Python code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from dexorder_spark.runtime.worker_daemon import without_archives
from tests.paths import ROOT

LIB = Path(pyspark.__file__).parent / "python" / "lib"
SCRIPT = """
import sys
from dexorder_spark.runtime.worker_daemon import remove_archives
remove_archives()
import pyspark
print(pyspark.__file__)
print([path for path in sys.path if path.endswith((".zip", ".jar"))])
print([path for path in sys.path_importer_cache if "pyspark.zip" in path])
"""


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        (["/s/python/lib/pyspark.zip", "/s/python/lib/py4j-0.10.9.9-src.zip", "/s/jars/spark-core_2.13-4.1.4.jar"], []),
        (["", "/project", "/scratch/dexorder-packages.zip"], ["", "/project", "/scratch/dexorder-packages.zip"]),
        (["/home/pyspark.zip/site"], ["/home/pyspark.zip/site"]),
    ],
)
def test_only_sparks_own_archives_go(paths: list[str], kept: list[str]) -> None:
    assert without_archives(paths) == kept


def test_installed_package_is_imported_where_spark_puts_its_archives_first() -> None:
    archives = [str(path) for path in LIB.glob("*.zip")]
    assert len(archives) == 2
    seen = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*archives, str(ROOT)])},
    ).stdout.splitlines()
    assert "pyspark.zip" not in seen[0]
    assert not any(Path(archive).name in seen[1] for archive in archives)
    assert seen[2] == "[]"
