"""Spark's daemon of Python workers, without what makes each of them slow. Runs as Spark's own, in its place.

Spark puts its Python code in front of the path as archives, beside the installed package. An archive's modules are
compiled anew in every process, and its directory is read anew, entry by entry in Python, for every task.
So they are taken off where the installed package serves, and what every worker needs is imported once, before the fork.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import PurePath


def without_archives(paths: Iterable[str]) -> list[str]:
    """A module path without the archives that Spark itself puts there; others', such as shipped packages, stay."""
    return [path for path in paths if not _is_sparks(PurePath(path))]


def _is_sparks(path: PurePath) -> bool:
    name = path.name
    return (
        name == "pyspark.zip"
        or (name.startswith("py4j-") and name.endswith("-src.zip"))
        or (name.startswith("spark-core_") and path.suffix == ".jar")
    )


def remove_archives() -> None:
    """Take them off this process's path, if pyspark and py4j are installed beside them."""
    before, sys.path[:] = list(sys.path), without_archives(sys.path)
    if not all(find_spec(name) for name in ("pyspark", "py4j")):
        sys.path[:] = before
        return
    for path in set(before).difference(sys.path):
        sys.path_importer_cache.pop(path, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(without_archives(os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def main() -> None:
    """Serve until Spark closes standard input."""
    remove_archives()
    import pyspark.daemon
    import pyspark.worker

    import spark.pipeline.files
    import spark.source.udsource  # noqa: F401

    gc.collect()
    gc.freeze()  # workers collect after every task; what is imported is no garbage
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
