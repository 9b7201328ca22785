"""``python -m tests.mutations [MODULE...] [--seed N] [--count N]``: draws some mutations of each module and tries each.

It lists those that no test notices, the survivors; without a module, it draws of all in `MODULES`. Only the tests that
run the changed statement run: those of the module's own name first, the shorter before the longer.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Sequence
from random import Random

from tests.breaks import SOURCES
from tests.mutations.changes import Mutation, count, mutations
from tests.mutations.code import changed_functions
from tests.mutations.modules import MODULES, by_folder, own_tests
from tests.mutations.runs import Collected, passes_anew
from tests.paths import ROOT

LOADED_ONCE = ("grpc", "numpy", "pyarrow", "pyiceberg.table")
"""Packages that take long to load, and know no module of ours."""


class Module:
    """A module whose changes are tried."""

    def __init__(self, path: str, tests: Collected) -> None:
        self._path = path
        self._tests = tests
        self._file = ROOT / f"{path}.py"
        self.source = self._file.read_text()
        self._code = compile(self.source, str(self._file), "exec")
        self._own = own_tests(path)

    def draw(self, seed: int, at_most: int) -> list[Mutation]:
        """Return some mutations, the same for the same seed."""
        number = count(self.source)
        chosen = Random(f"{seed} {self._path}").sample(range(number), min(at_most, number))
        return mutations(self.source, str(self._file), set(chosen))

    def notices(self, mutation: Mutation) -> tuple[bool, int]:
        """Return whether a test notices a change, and the number of the tests that run the statement."""
        changed = changed_functions(self._code, mutation.code)
        lines = self._tests.known.lines[self._path]
        first, last = mutation.statement
        reached = {test for line in range(first, last + 1) for test in lines.get(line, ())}
        if changed is None:  # it runs at the import, so any test of the module may notice it
            reached = {test for tests in lines.values() for test in tests}
        if changed and not self._tests.passes(self._path, changed, self._order(reached)):
            return True, len(reached)
        return not passes_anew(self._path, mutation.code, self._order(reached), self._tests.known), len(reached)

    def _order(self, tests: set[str]) -> list[str]:
        seconds = self._tests.known.seconds
        return sorted(tests, key=lambda each: (each.partition("::")[0] not in self._own, seconds[each], each))


def main(words: Sequence[str]) -> bool:
    """Run the mutations; return whether the tests have noticed less than nine tenths of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    given = parser.parse_args(words)
    os.chdir(ROOT)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # as in conftest.py
    for name in LOADED_ONCE:
        importlib.import_module(name)
    sys.path[:0] = [str(ROOT / each) for each in SOURCES]
    total = survivors = 0
    failed: list[str] = []
    for folder, modules in by_folder(given.modules).items():
        began = time.monotonic()
        tests = Collected(folder, modules)
        failed += tests.known.failed
        print(f"{folder}: {len(tests.known.seconds)} tests in {time.monotonic() - began:.0f} s", flush=True)
        for path in modules:
            module = Module(path, tests)
            drawn = module.draw(given.seed, given.count)
            for each in drawn:
                total += 1
                is_noticed, reached = module.notices(each)
                if not is_noticed:
                    survivors += 1
                    print(
                        f"{path}.py:{each.line}: {each.before!r} -> {each.after!r} ({reached} tests run it)", flush=True
                    )
            print(f"{path}: {total - survivors} of {total} noticed so far", flush=True)
        tests.end()
    for test in failed:
        print(f"{test} fails without a mutation, and was left out")
    print(f"{total - survivors} of {total} noticed")
    return bool(failed) or 10 * survivors > total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
