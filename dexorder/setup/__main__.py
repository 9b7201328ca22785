"""``python -m dexorder.setup``: installs Java and the jars, with one line per step; ``make setup`` calls it.

``python -m dexorder.setup secrets FOLDER`` writes what connections between the parts of one host need.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from dexorder.setup import jars, java
from dexorder.setup.config import SetupError


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return the exit status; 1 with one sentence on stderr for an error."""
    parser = argparse.ArgumentParser(prog="python -m dexorder.setup", description="Install Java and the jars.")
    commands = parser.add_subparsers(dest="command", title="commands", description="without one: java, then fetch")
    commands.add_parser("java", help="find Java 17 or newer, or install a runtime into this Python environment")
    fetch = commands.add_parser("fetch", help="download the jars that are not in the cache and verify their checksums")
    fetch.add_argument("sets", nargs="*", metavar="SET", help="set of jars.toml; default: all that are not optional")
    paths = commands.add_parser("paths", help="print the paths of the jars, separated by commas, as Spark takes them")
    paths.add_argument("sets", nargs="+", metavar="SET", help="set of jars.toml")
    commands.add_parser("lock", help="resolve jars.toml again and write jars.lock")
    secrets = commands.add_parser("secrets", help="write certificates, keys and callers for deploy/compose.yaml")
    secrets.add_argument("folder", type=Path, help="gets a folder for each part")
    secrets.add_argument("--renew", action="store_true", help="write them again; then restart every part")
    options = parser.parse_args(arguments)
    started = time.monotonic()

    def report(line: str) -> None:
        print(f"[{time.monotonic() - started:5.1f} s] {line}", flush=True)

    try:
        if options.command in (None, "java"):
            found = java.ensure_java(report)
            report(f"java {found.version} ({found.source}): {found.home}")
        if options.command in (None, "fetch"):
            for name in getattr(options, "sets", None) or jars.set_names():
                jars.fetch(name, java.ensure_java, report)
        if options.command == "paths":
            print(",".join(str(path) for name in options.sets for path in jars.jar_paths(name)))
        if options.command == "lock":
            jars.lock(java.ensure_java, report)
        if options.command == "secrets":
            _make_secrets(options.folder, report, renew=options.renew)
    except SetupError as error:
        print(f"dexorder.setup: {error}", file=sys.stderr)
        return 1
    return 0


def _make_secrets(folder: Path, report: Callable[[str], None], *, renew: bool) -> None:
    from dexorder.setup.secrets import make  # deferred: not every set-up has cryptography

    made = make(folder, renew=renew)
    state = f"written; the certificates end on {made.until:%Y-%m-%d}" if made.until else "there already, unchanged"
    report(f"secrets in {folder}: {state}")


if __name__ == "__main__":
    sys.exit(main())
