"""Ends of the command: expected errors as one line on stderr, as JSON where it was asked for, and the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from dexorder.errors import DexorderError, QuotaReached, Refused, SetupError
from dexorder_common.packages import install_command

FAILED, REFUSED = 1, 2
"""Exit codes of a command that could not do its work, and of one whose arguments were refused, here or by the relay."""

EXTRAS = {
    "pg8000": "lake",
    "pyarrow": "lake",
    "pyiceberg": "lake",
    "sqlalchemy": "lake",
    "duckdb": "sql",
    "plotly": "chart",
    "zmq": "events",
}
"""Extra that brings a module; ``suite`` brings all that are not listed."""
_OTHERS = frozenset(
    {
        "aiohttp",
        "aiosmtplib",
        "ccxt",
        "confluent_kafka",
        "firebase_admin",
        "grpc_channelz",
        "grpc_health",
        "grpc_reflection",
        "jwt",
        "numpy",
        "prometheus_client",
        "ptars",
        "pyspark",
        "pywebpush",
        "uvloop",
    }
)


_TYPES = {
    "<int>": "<number>",
    "<int range>": "<number>",
    "<float>": "<number>",
    "<float range>": "<number>",
    "<str>": "<text>",
    "<list[str]>": "<text>",
}
"""Python's names of types, which Typer shows in the help, and words for them. Arguments have their own names."""


_SUMMARY = 200
"""Longest summary of a command in a list, in characters."""


class WithoutPythonsTypes(TyperGroup):
    """Group of commands. Their help shows words instead of Python's types, and whole summaries."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command that describes the types of its parameters in words."""
        command = super().get_command(ctx, cmd_name)
        for each in getattr(command, "params", ()):
            each.display_type_rich = partial(_described, each)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with its summary, wrapped at the terminal's width; Typer cuts the summary there."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(_SUMMARY)) for name, each in commands if not each.hidden]
            )


def _described(parameter: Any, ctx: Any) -> str:
    if parameter.param_type_name == "argument":
        return ""
    label: str = parameter.display_type(ctx)
    return _TYPES.get(label, label)


class Reporting(WithoutPythonsTypes):
    """Commands that report expected errors. A closed pipe exits silently."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command, and see whether the command is to print JSON."""
        ctx.meta[__name__] = wants_json(args)
        with _reported(ctx.meta[__name__]):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Parse the command's own arguments and run it."""
        with _reported(ctx.meta[__name__]):
            return super().invoke(ctx)


def deferred_group(*modules: str, help: str) -> typer.Typer:
    """Return a group with the commands of the ``app`` of each module, which are imported when the group is used."""

    class Deferred(WithoutPythonsTypes):
        @property  # type: ignore[override]
        def commands(self) -> Mapping[str, Any]:
            return _commands_of(modules)

        @commands.setter
        def commands(self, none: object) -> None:
            """Ignore what Typer sets: it knows no command of the group."""

    return typer.Typer(cls=Deferred, no_args_is_help=True, help=help)


@cache
def _commands_of(modules: tuple[str, ...]) -> dict[str, Any]:
    groups: list[Any] = [get_command(import_module(each).app) for each in modules]
    return {name: command for group in groups for name, command in group.commands.items()}


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether ``--json`` or ``-j`` is among the arguments, which may be invalid otherwise."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return not {"--json", "-j", "-qj", "-jq"}.isdisjoint(options)


@contextmanager
def _reported(as_json: bool) -> Iterator[None]:
    try:
        yield
    except (DexorderError, SetupError) as error:
        raise _failure(type(error).__name__, str(error), exit_code(error), as_json) from None
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        raise _failure("MissingPackage", advice, FAILED, as_json) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except Exception as error:
        if (refusal := _refusal_of(error)) is None:
            raise
        raise _failure("InvalidArguments", refusal, REFUSED, as_json) from None


def _refusal_of(error: Exception) -> str | None:
    """Return one sentence on why the command line was refused; None for other errors, and for help shown as an error.

    Typer has its own copy of Click with private classes, so this function recognizes them by their attributes.
    """
    context = getattr(error, "ctx", None)
    if context is None or not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
        return None
    reason = " ".join(error.format_message().split()).removesuffix(".").removeprefix("Invalid value: ")
    return f"{reason}; see `{context.command_path} --help`"


def exit_code(error: Exception) -> int:
    """Return 2 for arguments that are refused, else 1."""
    return REFUSED if isinstance(error, Refused) and not isinstance(error, QuotaReached) else FAILED


def _failure(kind: str, message: str, code: int, as_json: bool) -> typer.Exit:
    """Print an error; return what ends the command."""
    from dexorder.cli.terminal import output  # deferred: completion and help do without Rich

    output.print_failure(message)
    if as_json:
        _print_json(kind, message, code)
    return typer.Exit(code)


def _print_json(kind: str, message: str, code: int) -> None:
    from dexorder.cli.terminal import output

    output.print_json_line({"error": {"kind": kind, "message": message, "exit_code": code}})


def missing_package(error: ModuleNotFoundError, extra: str | None = None) -> str | None:
    """Return what to install, by default the extra of the module; None if no extra contains the module."""
    module = (error.name or "").partition(".")[0]
    if module not in _OTHERS and module not in EXTRAS:
        return None
    return f"the module {module} is not installed: {install_command(extra or EXTRAS.get(module, 'suite'))}"
