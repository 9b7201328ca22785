"""Completion of the shell: its table is fresh, it answers as Typer does, and a key press waits for nothing slow."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer._completion_classes import BashComplete
from typer.main import get_command

from dexorder.cli import completion, completion_table
from dexorder.cli.app import app
from dexorder.cli.terminal.known_tickers import complete_ticker, remember

TABLE: Any = json.loads(completion.TABLE.read_text())
TICKERS = ("BTC/EUR.SIM", "BTC/USDT.SIM", "ETH/USDT.SIM")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    remember("SIM", TICKERS)
    return tmp_path / "cache"


def test_the_table_is_that_of_the_commands() -> None:
    assert completion.TABLE.read_text() == completion_table.table(), "python -m dexorder.cli.completion_table"


def command_lines() -> Iterator[tuple[list[str], str]]:
    """Yield complete words and the incomplete one: each command's options, their values, its arguments."""
    for path, entry in TABLE.items():
        words = path.split()
        yield from ((words, each) for each in ("", "-", "--", "x", "B", "1"))
        for option in entry["options"]:
            for name in option["names"]:
                yield words, name
                yield [*words, name], ""
                rest = ["1"] if "values" in option else []
                yield [*words, name, *rest], ""
                yield [*words, name, *rest], "--"
                if rest and name.startswith("--"):
                    yield words, f"{name}="
        for count in range(len(entry["arguments"]) + 1):
            yield [*words, *["1"] * count], ""
            if count < len(entry["arguments"]):  # else Typer offers options behind --, which are none there
                yield [*words, "--", *["1"] * count], "-"
    yield ["nothing"], "h"
    yield ["requests", "nothing"], "l"


def test_it_answers_as_typer_does() -> None:
    root = get_command(app)
    typer = BashComplete(root, {}, "dexorder", completion.INSTRUCTION)
    asked = 0
    for words, incomplete in command_lines():
        theirs = {each.value: each.help or "" for each in typer.get_completions([*words], incomplete)}
        ours = dict(completion.offers(TABLE, words, incomplete))
        assert sorted(ours) == sorted(theirs), (words, incomplete)
        for word, text in theirs.items():
            assert ours[word].startswith(" ".join(text.split()).removesuffix("...")), (words, word)
        asked += bool(ours)
    assert asked > 500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dexorder read BTC", ["dexorder", "read", "BTC"]),
        ("dexorder sql 'SELECT 1", ["dexorder", "sql", "SELECT 1"]),
        ("dexorder sql \\", ["dexorder", "sql", ""]),
        ("dexorder read #1", ["dexorder", "read", "#1"]),
    ],
)
def test_an_unfinished_line_has_words(text: str, words: list[str]) -> None:
    assert completion.split(text) == words


def asked_by(shell: str, **environment: str) -> tuple[str, int] | None:
    return completion.answer({completion.INSTRUCTION: f"complete_{shell}", **environment})


def test_each_shell_gets_its_form() -> None:
    assert asked_by("bash", COMP_WORDS="dexorder\nserve\nu", COMP_CWORD="2") == ("udsource", 0)
    typed = {"_TYPER_COMPLETE_ARGS": "dexorder requests list --rel"}
    text = "host:port of the relay; default DEXORDER_RELAY, else the suite on this machine"
    zsh = text.replace(":", r"\\:")
    assert asked_by("zsh", **typed) == (f"""_arguments '*: :(("--relay":"{zsh}"))'""", 0)
    assert asked_by("fish", **typed, _TYPER_COMPLETE_FISH_ACTION="get-args") == (f"--relay\t{text}", 0)
    assert asked_by("fish", **typed, _TYPER_COMPLETE_FISH_ACTION="is-args") == ("", 0)
    nothing = {"_TYPER_COMPLETE_ARGS": "dexorder read --out "}
    assert asked_by("fish", **nothing, _TYPER_COMPLETE_FISH_ACTION="is-args") == ("", 1)
    assert asked_by("zsh", **nothing) == ("_files", 0)


def test_typer_answers_what_the_table_can_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked_by("powershell") is None and completion.answer({completion.INSTRUCTION: "source_bash"}) is None
    assert asked_by("bash") is None, "without words"
    for damaged in ("", "[]", "{}"):
        (tmp_path / "table").write_text(damaged)
        monkeypatch.setattr(completion, "TABLE", tmp_path / "table")
        assert asked_by("bash", COMP_WORDS="dexorder\nread", COMP_CWORD="1") is None


AFTER_PERIODS = ["--format", "jsonl", "udsource", "15m", "BTC/EUR.SIM BTC/USDT.SIM", "ETH/USDT.SIM"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    """The script that the command shows, in a real bash: what a person gets who presses TAB."""
    command = tmp_path / "dexorder"
    program = "import sys; from dexorder.cli import main; sys.argv[0] = 'dexorder'; main()"
    line = shlex.join((sys.executable, "-c", program))  # a first line could not name a path with a space
    command.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    command.chmod(0o755)
    script = """
source <(dexorder --show-completion bash)
complete -p dexorder >/dev/null || exit 3
press() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
  _dexorder_completion dexorder
  echo "${COMPREPLY[*]}"
}
press dexorder hist
press dexorder requests list --state R
press dexorder read BTC/USDT.SIM 1
press dexorder read --form
press dexorder read --format j
press dexorder serve u
press dexorder history BTC/USDT.SIM 15
press dexorder history BTC/
press dexorder read ETH
"""
    environment = os.environ | {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SHELL": "/bin/bash",
    }
    run = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=110)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0] == "history" and lines[1] == "RUNNING" and lines[3:] == AFTER_PERIODS, run.stdout
    assert {"1m", "1h", "1d", "1w"} <= set(lines[2].split())


def test_completion_imports_nothing_that_takes_time() -> None:
    slow = {
        "typer",
        "pydantic",
        "grpc",
        "rich",
        "pyarrow",
        "asyncio",
        "google.protobuf",
        "importlib.metadata",
        "inspect",
    }
    code = (
        "import atexit, sys, dexorder.cli\n"
        f"atexit.register(lambda: print(sorted({slow!r} & set(sys.modules))))\ndexorder.cli.main()"
    )
    environment = os.environ | {
        completion.INSTRUCTION: "complete_bash",
        "COMP_WORDS": "dexorder\nhistory\nETH",
        "COMP_CWORD": "2",
    }
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ETH/USDT.SIM", "[]"]


def test_remembered_tickers_are_files_of_the_cache_alone(tmp_path: Path, cache: Path) -> None:
    remember("../../evil", ["BTC/USDT.X"])
    remember("SIM", ["BTC/USDT.SIM", "A\x1b[31m.SIM", "B C.SIM"])
    assert [each.name for each in tmp_path.rglob("*.txt")] == ["SIM.txt"] and complete_ticker("B") == ["BTC/USDT.SIM"]
    (cache / "dexorder" / "tickers" / "BAD.txt").write_bytes(b"\xff\xfe")
    assert complete_ticker("zz") == []
