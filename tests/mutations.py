"""Mutations of pure modules: small changes of the syntax tree, which the nearest unit tests must notice.

``python -m tests.mutations [MODULE...] [--seed N] [--count N]`` draws some of each module, at most ``--count``, applies
each alone in a copied tree (`tests/breaks.py`), runs the tests and lists the survivors; without a module, those of
`MODULES`. The nearest tests are those of the same name, or those that `NEAREST` names.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc  # noqa: F401 - it and those below are loaded once for all runs
import numpy  # noqa: F401
import pyarrow  # noqa: F401
import pyiceberg.table  # noqa: F401
import pytest

from tests.breaks import SOURCES, copied_tree
from tests.paths import ROOT

RELAY, INGESTOR, COMMON = "services/relay/dexorder_relay", "services/ingestor/dexorder_ingestor", "services/common"
UNIT = ROOT / "tests" / "unit"
MODULES = (
    *(
        f"{RELAY}/state/{name}"
        for name in ("dispatches", "leases", "job", "planner", "coverage", "provisional", "compare")
    ),
    *(f"{RELAY}/state/{name}" for name in ("realtime", "realtime_job", "request", "triggers", "udfs")),
    *(f"{INGESTOR}/history/{name}" for name in ("evidence", "candidate_series", "checksum", "newest", "paging")),
    *(f"{INGESTOR}/realtime/{name}" for name in ("trade_batches", "trade_sequence", "live_candles", "agreed/feed")),
    *(
        f"{COMMON}/dexorder_common/model/{name}"
        for name in ("time_range", "periods", "proof", "checksum", "instrument")
    ),
    *(f"{COMMON}/dexorder_cep/run/{name}" for name in ("matcher", "stream", "running", "runs", "delivery")),
)
NEAREST = {
    f"{RELAY}/state": ("services/relay/state",),
    f"{INGESTOR}/history": ("services/ingestor/history",),
    f"{INGESTOR}/realtime": ("services/ingestor/realtime",),
    f"{COMMON}/dexorder_cep": ("services/common/cep",),
    f"{COMMON}/dexorder_common/model": ("services/common/model",),
}
"""By the start of a module's path, the tests that run where those of its own name have noticed nothing."""
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a module: one line, and what stands there instead."""

    line: int
    before: str
    after: str
    source: str
    """The whole module, changed."""


def mutations(source: str) -> list[Mutation]:
    """Return every mutation of a module, in the order of its lines."""
    count = sum(1 for _ in _changes(ast.parse(source)))
    found = []
    for number in range(count):
        tree = ast.parse(source)
        for index, (node, before) in enumerate(_changes(tree)):
            if index == number:  # the change is in place until the next step
                after = ast.unparse(node)
                found.append(Mutation(node.lineno, before, after, ast.unparse(tree)))
                break
    return found


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Make each change in turn and take it back; yield the changed node, and its text before."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield from _changed(node, "ops", [COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
        elif isinstance(node, ast.BoolOp):
            yield from _changed(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            yield from _changed(node, "op", ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
        elif isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= 8:
            yield from _changed(node, "value", node.value + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            yield from _changed(node, "func", ast.Name(SWAPPED[node.func.id], ast.Load()))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _changed(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield from _changed(node, "value", ast.Constant(None))
        for block in ("body", "orelse", "finalbody"):
            yield from _dropped(node, getattr(node, block, []))


def _changed(node: ast.expr | ast.stmt, name: str, value: object) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    before, old = ast.unparse(node), getattr(node, name)
    setattr(node, name, value)
    yield node, before
    setattr(node, name, old)


def _dropped(node: ast.AST, block: object) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Drop each statement of a function that calls or assigns something."""
    if not isinstance(block, list) or isinstance(node, ast.Module | ast.ClassDef):
        return
    for index, statement in enumerate(block):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign) and not is_text:
            block[index] = ast.copy_location(ast.Pass(), statement)
            yield block[index], ast.unparse(statement)
            block[index] = statement


def nearest(module: str) -> list[list[str]]:
    """Return the tests of a module's name, and those around them."""
    *_, folder, name = module.split("/")
    around = next(tests for start, tests in NEAREST.items() if module.startswith(start))
    own = [
        f"unit/{each.relative_to(UNIT)}"
        for place in around
        for known_as in (name, f"{folder}_{name}")
        for each in (UNIT / place).rglob(f"test_{known_as}*.py")
    ]
    return [*([sorted(own)] if own else []), [f"unit/{folder}" for folder in around]]


def passes(tree: Path, tests: Sequence[str], *, keeps_bytecode: bool = False) -> bool:
    """Return whether tests pass in a copy, in a fork of this process, which has loaded what takes long to load."""
    child = os.fork()
    if child == 0:
        os.chdir(tree)
        os.environ["PYTHONPATH"] = os.pathsep.join(paths := [str(tree / each) for each in SOURCES])
        sys.path[:] = [*paths, *(each for each in sys.path if Path(each or ".").resolve() != ROOT)]
        sys.dont_write_bytecode = not keeps_bytecode  # a mutation may have the size and the second of the one before
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        options = ["-q", "-x", "--timeout=60", "-p", "no:cacheprovider", *(f"tests/{each}" for each in tests)]
        os._exit(int(pytest.main(options)))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main(words: Sequence[str]) -> bool:
    """Run the mutations; return whether the tests have noticed less than nine tenths of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    given = parser.parse_args(words)
    survivors = total = 0
    with copied_tree() as tree:
        for module in given.modules:
            path = tree / f"{module}.py"
            content, times = path.read_text(), path.stat()
            found, random = mutations(content), Random(f"{given.seed} {module}")
            if not all(passes(tree, each, keeps_bytecode=True) for each in nearest(module)):
                print(f"{module}: its tests fail without a mutation", flush=True)
                return True
            for each in sorted(random.sample(found, min(given.count, len(found))), key=lambda each: each.line):
                path.write_text(each.source)
                total += 1
                if all(passes(tree, each) for each in nearest(module)):
                    survivors += 1
                    print(f"{module}.py:{each.line}: {each.before!r} -> {each.after!r}", flush=True)
            path.write_text(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            print(f"{module}: {len(found)} mutations, {total - survivors} of {total} killed so far", flush=True)
    print(f"{total - survivors} of {total} killed")
    return 10 * survivors > total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
