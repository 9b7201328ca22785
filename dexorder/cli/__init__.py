"""The ``dexorder`` command: its entry point, and how commands report errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dexorder.errors import DexorderError
from dexorder.setup.config import SetupError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value to stdout")]


def main() -> None:
    """Run the command of this process. Exits with the command's exit code."""
    from dexorder.cli.app import app  # deferred: a module that imports helpers of the package does not need the command

    app()


@contextmanager
def reported() -> Iterator[None]:
    """Turn an expected error into one line on stderr and exit code 1. A closed pipe exits silently."""
    try:
        yield
    except (DexorderError, SetupError) as error:
        typer.echo(f"dexorder: {error}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
