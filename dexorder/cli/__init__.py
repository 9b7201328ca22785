"""The ``dexorder`` command: its entry point."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command of this process. Exits with the command's exit code."""
    if "_DEXORDER_COMPLETE" in os.environ:
        _complete()
    if sys.argv[1:3] == ["udf", "serve"] and sys.argv[4:] in ([], ["--stdio"]):
        _serve(*sys.argv[3:4])
    from dexorder.cli.app import app  # deferred: a module that imports helpers of the package does not need the command

    app()


def _complete() -> None:
    """Answer the shell and exit; return if Typer has to answer."""
    from dexorder.cli.completion import answer

    if (found := answer(os.environ)) is not None:
        text, code = found
        sys.stdout.write(f"{text}\n" if text else "")
        sys.exit(code)


def _serve(name: str = "") -> None:
    """Serve a shipped function over stdin and stdout; return if the command must report an error.

    A host starts it again and again, and it does not need the rest of the command, which takes twice its time.
    """
    from dexorder.udf.functions import FUNCTIONS

    if name in FUNCTIONS:
        from dexorder.udf.servers import serve_stdio

        sys.exit(serve_stdio(FUNCTIONS[name]))
