"""``python -m dexorder.setup``: installs Java and the jars, with one line per step; ``make setup`` calls it."""

import argparse
import sys
import time

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
    except SetupError as error:
        print(f"dexorder.setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
