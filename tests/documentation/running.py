"""Programs of a page, run in its order in a folder of its own, as a reader beside a running suite would."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dexorder.setup import config
from dexorder.supervisor.plan import Ports
from tests.documentation.blocks import Block
from tests.documentation.entries import Page, Run, Saved
from tests.documentation.session import END
from tests.newcomer.tutorial import Step, missing, shell_step, words
from tests.paths import ROOT
from tests.rig.processes import free_block
from tests.rig.suite import Suite

COMMAND_SECONDS = 300
AT_END = "trap 'kill $(jobs -p) 2>/dev/null && wait || true' EXIT"
CTRL_C = f"{shlex.quote(sys.executable)} -m tests.documentation.interrupted"
"""Runs a command until its output has a text; see `tests.documentation.interrupted`."""
SIMULATED = {".BINANCE": ".SIM", '"BINANCE"': '"SIM"'}
"""The exchange of the suite in place of a real one."""
HTTP = 19092
"""Port of Kafka-Pixy's HTTP API."""


def ports(base_port: int) -> dict[int, int]:
    """Return the ports of a suite, by those that pages name."""
    named, there = asdict(Ports()), asdict(Ports.from_base(base_port))
    return {named[part]: there[part] for part in named}


@dataclass(frozen=True)
class Reader:
    """A user who reads a page in a folder in which ``dexorder up`` was started."""

    folder: Path
    suite: Suite
    page: Page
    ports: Mapping[int, int]
    """Of the suite, by those that pages name."""
    tools: Path
    """Folder of further commands."""
    free_port: int
    """First of as many free ports as a suite has."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the user's terminal."""
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "GOBIN", "GOPROXY") if name in os.environ}
        return kept | {
            "HOME": str(self.folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:{self.tools}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "LANG": "C.UTF-8",
            "COLUMNS": "140",
            "DEXORDER_CACHE": str(config.load().cache_dir),
            "SUITE": str(self.suite.directory),
            "BASE_PORT": str(self.suite.base_port),
            "FREE_PORT": str(self.free_port),
        }

    def shell(self, code: str) -> str:
        """Run commands; return what they print. AssertionError if one fails."""
        done = subprocess.run(
            ["bash", "-ec", f"{AT_END}\n{code}"],
            cwd=self.folder,
            env=self.environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"exit code {done.returncode} of\n{code}\nwhich printed\n{done.stdout}"
        return done.stdout

    def changed(self, text: str, entry: Run) -> str:
        """Return a block with the exchange and the addresses of this suite, and the replacements of page and entry."""
        for old, new in SIMULATED.items():
            text = text.replace(old, new)
        for old, new in (*self.page.changed.items(), *entry.changed.items()):
            assert old in text or old in self.page.changed, f"{old!r} is no part of the block any more"
            text = text.replace(old, new)
        for named, there in self.ports.items():
            text = re.sub(rf"(localhost|127\.0\.0\.1):{named}\b", rf"\1:{there}", text)
        return text

    def run(self, block: Block, entry: Run, programs: Programs) -> None:
        """Run a block; AssertionError if it fails, or does not print what the page shows."""
        text = self.changed(block.text, entry)
        step = shell_step(text.splitlines()) if re.search(r"^\$ ", text, re.M) else Step("shell", text, [])
        if entry.by:
            file = self.folder / f"block-{block.line}"
            file.write_text(text)
            printed = self.shell(f"BLOCK={file}\n{entry.by}")
        elif block.language == "python":
            printed = programs.run(text, entry.until)
            if entry.then:
                programs.run(entry.then)
        else:
            printed = self.shell(step.code)
        absent = refuted(step, entry, printed)
        assert absent == [], f"not printed: {absent}, by\n{text}\nwhich printed\n{printed}"


def refuted(step: Step, entry: Run, printed: str) -> list[str]:
    """Return the lines that the page shows, or the pattern of the entry, that an output does not have."""
    compared = [line for line in step.shown if not (entry.apart and re.search(entry.apart, line))]
    alike = step._replace(shown=[like(line, entry.unlike) for line in compared])
    return missing(alike, like(printed, entry.unlike)) + ([] if re.search(entry.prints, printed) else [entry.prints])


def like(text: str, unlike: str) -> str:
    """Return a text without what may differ; a shown line may be cut off by an ellipsis."""
    text = re.sub(r"─+", "─", words(text.removesuffix("…")))
    return re.sub(unlike, "…", text) if unlike else text


class Programs:
    """The process of a page's Python programs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, code: str, until: str = "") -> str:
        """Run a program; return what it prints. AssertionError if it fails.

        With ``until`` press Ctrl-C once it has printed this.
        """
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        printed, wanted = "", "interrupted" if until else "ran"
        for line in self._process.stdout:
            if line.startswith(END):
                assert line.strip(f"{END}\n") == wanted, f"{code}\nprinted\n{printed}"
                return printed
            printed += line
            if until and until in line:
                self._process.send_signal(signal.SIGINT)
                until = ""
        raise AssertionError(f"{code}\nended the process, and printed\n{printed}")


@contextmanager
def programs_of(reader: Reader) -> Iterator[Programs]:
    """Start the process of a page's programs; kill it at the end."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.documentation.session"],
        cwd=reader.folder,
        env=reader.environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            yield Programs(process)
        finally:
            process.kill()


def read(page: Page, blocks: list[Block], folder: Path, suite: Suite, ports: Mapping[int, int], tools: Path) -> None:
    """Run the blocks of a page, in its order."""
    (folder / "home").mkdir(parents=True)
    (folder / "dexorder-data").symlink_to(suite.directory)
    reader = Reader(folder, suite, page, ports, tools, free_block(len(ports)))
    for block, entry in zip(blocks, page.blocks, strict=True):
        if isinstance(entry, Saved):
            (folder / entry.file).write_text(block.text)
    reader.shell(page.prepared_by)
    with programs_of(reader) as programs:
        if page.names:
            programs.run(page.names)
        for block, entry in zip(blocks, page.blocks, strict=True):
            if isinstance(entry, Run):
                try:
                    reader.run(block, entry, programs)
                except AssertionError as error:
                    raise AssertionError(f"{block.place}: {error}") from None
