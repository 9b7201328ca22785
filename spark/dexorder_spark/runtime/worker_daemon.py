"""Spark's daemon of Python workers, with a faster start of each worker. Spark runs it instead of its default daemon.

Spark puts its Python code at the front of the path as archives, although the package is installed. An archive's modules
are compiled again in every process, and its directory is read again for every task. So the archives are removed from
the path if the package is installed, and the modules that every worker needs are imported once, before the fork.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import PurePath

_ARCHIVES = ("pyspark.zip", "py4j-*-src.zip", "spark-core_*.jar")


def without_archives(paths: Iterable[str]) -> list[str]:
    """Return a module path without Spark's own archives; others, such as shipped packages, remain."""
    return [path for path in paths if not any(map(PurePath(path).match, _ARCHIVES))]


def remove_archives() -> None:
    """Remove Spark's archives from this process's path if pyspark and py4j are installed."""
    before = list(sys.path)
    sys.path[:] = without_archives(before)
    if not all(find_spec(name) for name in ("pyspark", "py4j")):
        sys.path[:] = before
        return
    for path in set(before).difference(sys.path):
        sys.path_importer_cache.pop(path, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(without_archives(os.environ.get("PYTHONPATH", "").split(os.pathsep)))


def main() -> None:
    """Run until Spark closes standard input."""
    remove_archives()
    import pyspark.daemon
    import pyspark.worker

    gc.collect()
    gc.freeze()  # workers collect after every task, and imported modules are not garbage
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
