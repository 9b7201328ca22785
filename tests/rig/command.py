"""The command ``dexorder`` in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from dexorder.cli.app import app


def dexorder(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command; the result has its output, exit code and exception."""
    return CliRunner().invoke(app, arguments, input=stdin)
