"""Runs of tests with a change: in a fork of a process that has collected them, or with a new import of the module.

The first way loads nothing twice. The second is the way in which Python would load the change.
"""

from __future__ import annotations

import itertools
import marshal
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from types import CodeType, ModuleType

import coverage
import pytest

from tests.mutations.code import Place, functions, module_name
from tests.paths import ROOT

TEST_SECONDS = 120
"""Limit of a test, long enough for a busy machine."""
ADDED_BYTES = 4 << 30
"""Address space that a change may take beyond that of the process."""
OPTIONS = (
    "-x",
    f"--timeout={TEST_SECONDS}",
    "-p",
    "no:cacheprovider",
    "-m",
    "not smoke and not nightly and not soak",
    "--assert=plain",  # the cause of a failure is not shown
    "--tb=line",
    "--hypothesis-profile=mutations",
)


@dataclass(slots=True)
class Known:
    """What the tests of a folder do without a change.

    Attributes:
        failed: Tests that fail.
        seconds: CPU time of each test that passes.
        lines: By module and line, the tests that run the line.
    """

    failed: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    def cpu_seconds(self, tests: Sequence[str]) -> float:
        """Return what tests may take with a change; one that needs more has noticed it."""
        return 5 + 5 * sum(self.seconds[each] for each in tests)


def forked(work: Callable[[], bool], cpu_seconds: float) -> bool:
    """Do something in a silent fork; return what it returns, False if it exceeds a limit."""
    if (child := os.fork()) == 0:
        result = False
        try:
            silent = os.open(os.devnull, os.O_RDWR)
            for each in range(3):
                os.dup2(silent, each)
            bytes_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (bytes_now + ADDED_BYTES,) * 2)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1,) * 2)
            result = work()
        finally:
            os._exit(not result)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Collected:
    """A process that has collected the tests of a folder, and forks for each change."""

    def __init__(self, folder: str, modules: Sequence[str]) -> None:
        self._ours, theirs = Pipe()
        if (child := os.fork()) == 0:
            try:
                self._ours.close()
                silent = os.open(os.devnull, os.O_RDWR)
                for each in range(3):
                    os.dup2(silent, each)
                pytest.main([*OPTIONS, folder], plugins=[_Forks(theirs, modules)])
            finally:
                os._exit(0)
        theirs.close()
        self._child = child
        self.known: Known = self._ours.recv()

    def passes(self, module: str, changed: dict[Place, CodeType], tests: Sequence[str]) -> bool:
        """Return whether tests pass with other code of some functions."""
        codes = {place: marshal.dumps(code) for place, code in changed.items()}
        self._ours.send((module, codes, tests))
        return bool(self._ours.recv())

    def end(self) -> None:
        """End the process."""
        self._ours.close()
        os.waitpid(self._child, 0)


class _Forks:
    """Plugin of pytest for the process that has collected: answers instead of running the tests."""

    def __init__(self, connection: Connection, modules: Sequence[str]) -> None:
        self._connection = connection
        self._modules = modules

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        with TemporaryFile() as file:

            def learn() -> bool:
                pickle.dump(_known(session, self._modules), file)
                file.flush()
                return True

            forked(learn, 3_600)
            file.seek(0)
            known: Known = pickle.load(file)
        self._connection.send(known)
        items = {each.nodeid: each for each in session.items}
        places = functions(module_name(each) for each in self._modules)
        while True:
            try:
                module, codes, tests = self._connection.recv()
            except EOFError:
                return True

            def passes(codes: dict[Place, bytes] = codes, module: str = module, tests: Sequence[str] = tests) -> bool:
                for place, code in codes.items():
                    for each in places[module_name(module)].get(place, ()):
                        each.__code__ = marshal.loads(code)
                return _passes(session, [items[each] for each in tests])

            self._connection.send(forked(passes, known.cpu_seconds(tests)))


def _passes(session: pytest.Session, items: Sequence[pytest.Item]) -> bool:
    """Run tests; return whether all pass, at once after the first that fails."""
    for item, following in itertools.zip_longest(items, items[1:]):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


def _known(session: pytest.Session, modules: Sequence[str]) -> Known:
    known = Known()
    files = {module: str(ROOT / f"{module}.py") for module in modules}
    measured = coverage.Coverage(data_file=None, config_file=False, include=list(files.values()))
    measured.start()
    for item, following in itertools.zip_longest(session.items, session.items[1:]):
        measured.switch_context(item.nodeid)
        failed, began = session.testsfailed, time.process_time()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed > failed:
            known.failed.append(item.nodeid)
        else:
            known.seconds[item.nodeid] = time.process_time() - began
    measured.stop()
    for module, file in files.items():
        by_line = measured.get_data().contexts_by_lineno(file)
        known.lines[module] = {line: [each for each in by if each in known.seconds] for line, by in by_line.items()}
    return known


def passes_anew(module: str, code: CodeType, tests: Sequence[str], known: Known) -> bool:
    """Return whether tests pass in a fork of this process, which has not loaded the module, with its other code."""

    def passes() -> bool:
        sys.meta_path.insert(0, _Finder(module_name(module), code))
        chosen = _Chosen(tests)
        files = dict.fromkeys(each.partition("::")[0] for each in tests)
        return pytest.main([*OPTIONS, *files], plugins=[chosen]) == 0

    return not tests or forked(passes, 30 + known.cpu_seconds(tests))


class _Chosen:
    """Plugin of pytest that runs some tests in their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._ranks = {test: rank for rank, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (each for each in items if each.nodeid in self._ranks), key=lambda each: self._ranks[each.nodeid]
        )


class _Finder(MetaPathFinder):
    """Finds a module whose code is another one."""

    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or (spec := PathFinder.find_spec(name, path, target)) is None or spec.origin is None:
            return None
        spec.loader = _Loader(name, spec.origin, self._code)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code
