"""Make the Python environment of an image smaller, and its start fast on a read-only file system.

``python slim.py prune FOLDER`` removes tests, headers, sources of extension modules, libraries that no part loads and
symbols from a folder of installed packages; it needs ``strip``. ``python slim.py compile`` imports the modules of every
part that its environment has packages for: Python then writes byte code of what parts import, and of nothing else.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = {"tests", "test"}
SOURCES = {".c", ".cc", ".cpp", ".h", ".hpp", ".pxd", ".pxi", ".pyi", ".pyx", ".a"}
# Only pyarrow.flight and pyarrow.substrait load these; no part imports them.
UNUSED = (
    "pyarrow/libarrow_flight.so.*",
    "pyarrow/libarrow_python_flight.so*",
    "pyarrow/_flight.*",
    "pyarrow/_substrait.*",
    # Spark's own examples and their data
    "pyspark/examples",
    "pyspark/data",
)


def prune(packages: Path) -> None:
    """Remove what no part uses from a folder of installed packages."""
    for pattern in UNUSED:
        for path in list(packages.glob(pattern)):
            _remove(path)
    for path in list(packages.rglob("*")):
        if (path.is_dir() and path.name in TESTS) or (path.is_file() and path.suffix in SOURCES):
            _remove(path)
    _link_copies(packages)
    for library in _libraries(packages):
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=True)


def compile_imported(package: str) -> None:
    """Import every module of a package; one that needs a package that is not installed is skipped."""
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if module.name.rpartition(".")[2] == "__main__":
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == package:
                raise
            print(f"{module.name} is not compiled: {error}", flush=True)


def _libraries(packages: Path) -> Iterator[Path]:
    # Those in *.libs were changed by auditwheel, which strip can damage.
    for path in packages.rglob("*.so*"):
        if path.is_file() and not path.is_symlink() and not any(part.endswith(".libs") for part in path.parts):
            yield path


def _link_copies(packages: Path) -> None:
    # A wheel has no links: it contains libarrow_python.so once for each of its names.
    for longest in packages.glob("pyarrow/libarrow_python*.so.*.*"):
        stem = longest.name.partition(".so")[0]
        for copy in packages.glob(f"pyarrow/{stem}.so*"):
            if copy != longest and copy.read_bytes() == longest.read_bytes():
                copy.unlink()
                copy.symlink_to(longest.name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prune", folder]:
            prune(Path(folder))
        case ["compile"]:
            compile_imported("dexorder")
        case _:
            sys.exit("usage: slim.py prune FOLDER | slim.py compile")
