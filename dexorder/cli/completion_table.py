"""Table of all commands for the completion of the shell: ``python -m dexorder.cli.completion_table [--check]``.

A test compares the table in the tree with the commands, and its answers with Typer's own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.main import get_command

from dexorder.cli.app import app
from dexorder.cli.completion import TABLE
from dexorder.cli.terminal.known_tickers import remember

HELP_LENGTH = 100
"""Length to which the first sentence of a command's help is cut."""
_PROBE = "PROBE/TICKER.SIM"
"""The only known ticker while the table is made: what offers it offers tickers."""


def table() -> str:
    """Return the table as JSON: a line for each command, with its path as the key."""
    root: Any = get_command(app)
    with _one_ticker(), root.make_context("dexorder", [], resilient_parsing=True) as context:
        lines = [f"{_json(path)}: {_json(entry)}" for path, entry in _commands("", root, context)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _commands(path: str, command: Any, context: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entry of a command, then the entries of its subcommands."""
    parameters = [each for each in command.get_params(context) if not getattr(each, "hidden", False)]
    children = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    yield (
        path,
        {
            "help": command.get_short_help_str(HELP_LENGTH),
            "options": [_option(each, context) for each in parameters if each.param_type_name == "option"],
            "arguments": [_argument(each, context) for each in parameters if each.param_type_name == "argument"],
            "commands": list(children),
        },
    )
    for name, each in children.items():
        inner = each.make_context(name, [], parent=context, resilient_parsing=True)
        yield from _commands(f"{path} {name}".strip(), each, inner)


def _option(option: Any, context: Any) -> dict[str, Any]:
    takes_value = not (option.is_flag or option.count)
    return {
        "names": sorted([*option.opts, *option.secondary_opts]),  # the names of --help are a set
        "help": " ".join((option.help or "").split()),
        **({"many": True} if option.multiple else {}),
        **(_offered(option, context) if takes_value else {}),
    }


def _argument(argument: Any, context: Any) -> dict[str, Any]:
    return {**({"many": True} if argument.nargs == -1 else {}), **_offered(argument, context)}


def _offered(parameter: Any, context: Any) -> dict[str, Any]:
    words = [each.value for each in parameter.shell_complete(context, "") if each.type == "plain"]
    tickers = {"tickers": True} if _PROBE in words else {}
    return {"values": [each for each in words if each != _PROBE]} | tickers


@contextmanager
def _one_ticker() -> Iterator[None]:
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            remember("SIM", [_PROBE])
            yield
        finally:
            del os.environ["XDG_CACHE_HOME"]
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def main() -> int:
    """Write the table, or compare it; return the exit code."""
    made = table()
    if "--check" not in sys.argv[1:]:
        TABLE.write_text(made, encoding="utf-8")
    elif TABLE.read_text(encoding="utf-8") != made:
        print(f"{TABLE} is stale: run `python -m {__spec__.name}`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
