"""The ``dexorder`` command: its entry point."""

from __future__ import annotations


def main() -> None:
    """Run the command of this process. Exits with the command's exit code."""
    from dexorder.cli.app import app  # deferred: a module that imports helpers of the package does not need the command

    app()
