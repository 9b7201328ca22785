"""How commands fail, and options that several of them have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from dexorder.errors import DexorderError
from dexorder.setup.config import SetupError

Json = Annotated[bool, typer.Option("--json", help="One JSON value on stdout")]


@contextmanager
def reported() -> Iterator[None]:
    """One line on stderr and exit 1 for what is raised on purpose; a closed pipe is nobody's error."""
    try:
        yield
    except (DexorderError, SetupError) as error:
        typer.echo(f"dexorder: {error}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
