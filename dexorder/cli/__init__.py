"""The ``dexorder`` command."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``dexorder`` script; ends the process with the command's exit code."""
    from dexorder.cli.app import app  # deferred: importing the package for its helpers must not build the command

    app()
