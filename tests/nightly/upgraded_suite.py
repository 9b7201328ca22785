"""A running suite whose parts start from the tree that a link names: of an older commit at first, then of this one.

python -m tests.nightly.upgraded_suite --dir DIR --base-port N --tree LINK
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from dexorder.supervisor import prepare
from dexorder.supervisor.plan import Ports, SuiteOptions, plan
from dexorder.supervisor.suite import Reporter, run_parts
from tests.nightly.soak_suite import SoakSuite, for_records
from tests.paths import ROOT
from tests.rig.processes import free_block, until
from tests.rig.suite import running_suite_at

ORDER = ("relay", "gateway", "udsource", "spark", "ingestor")
"""Order of an upgrade, see docs/operations.md."""
READY_SECONDS = 300
_MODULE = "tests.nightly.upgraded_suite"
_BECOME = """
import os, sys
root, link, *command = sys.argv[1:]
tree, path = os.path.realpath(link), os.environ["PYTHONPATH"].split(os.pathsep)
inside = [each for each in path if each == root or each.startswith(root + os.sep)]
os.environ["PYTHONPATH"] = os.pathsep.join(tree + each.removeprefix(root) for each in inside)
os.execvp(command[0], command)
"""
"""Becomes a command, with the packages of the link's tree in the place of this one's."""


class UpgradedSuite(SoakSuite):
    """A suite whose parts have the packages of an older commit until `upgrade`."""

    def upgrade(self, part: str) -> None:
        """Replace one part by this tree's, in order; return when it is ready."""
        old_pid = self.pid(part)
        os.kill(old_pid, signal.SIGTERM)
        until(lambda: self.is_new(part, old_pid), READY_SECONDS, self.logs)

    def tree_of(self, part: str) -> str:
        """Return the first folder of the part's packages."""
        variables = Path(f"/proc/{self.pid(part)}/environ").read_bytes().decode().split("\0")
        (path,) = (each.removeprefix("PYTHONPATH=") for each in variables if each.startswith("PYTHONPATH="))
        return path.split(os.pathsep)[0]


def unpack(commit: str, folder: Path) -> Path:
    """Unpack the packages of a commit."""
    packed = subprocess.run(
        ["git", "archive", commit, "dexorder", "services", "spark"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder


@contextmanager
def upgraded_suite(folder: Path, commit: str) -> Iterator[tuple[UpgradedSuite, Path]]:
    """Run a suite of a commit; yield it and the link, which the caller turns to this tree before it upgrades."""
    link = folder / "tree"
    link.symlink_to(unpack(commit, folder / "old"))
    command = f"{_MODULE} --tree {link}"
    base_port = free_block(20)
    with running_suite_at(base_port, folder / "suite", command=command, **for_records(base_port)) as each:
        yield UpgradedSuite(each.directory, each.base_port, each.process, each.environment), link


def turn(link: Path) -> None:
    """Let parts that start from now on have this tree's packages."""
    new = link.with_suffix(".new")
    new.symlink_to(ROOT)
    new.rename(link)


def main() -> None:
    """Run the parts until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--base-port", type=int, required=True)
    parser.add_argument("--tree", type=Path, required=True)
    given = parser.parse_args()
    options = SuiteOptions(given.dir, Ports.from_base(given.base_port))
    prepare.empty_scratch(options.scratch)
    prepare.write_exchanges(None, options)
    prepare.make_jwt_keys(options)
    java = prepare.java_and_jars(options, print)
    words = (sys.executable, "-c", _BECOME, str(ROOT), str(given.tree))
    parts = [replace(part, command=(*words, *part.command)) for part in plan(options, java=java)]
    report = Reporter(all_ready=lambda: print("[upgraded] all parts are ready", flush=True))
    asyncio.run(run_parts(parts, options.directory, options.ports.relay, report))


if __name__ == "__main__":
    main()
