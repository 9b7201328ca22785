"""Process that runs the Python programs of one page, each with the names of those before it.

Reads a JSON text per line from stdin, runs it as Python, and prints `END` and how it ended in a line of its own.
"""

from __future__ import annotations

import json
import linecache
import sys
import traceback
import types

END = "\x1e"
"""Begins the line after the output of a program; ``ran``, ``interrupted`` or ``failed`` follows."""


def run(code: str, name: str) -> str:
    """Run a program in ``__main__``, which programs of a user's script are in; return how it ended."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)  # for the lines of a traceback
    try:
        exec(compile(code, name, "exec"), sys.modules["__main__"].__dict__)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException:
        traceback.print_exc()
        return "failed"
    return "ran"


def main() -> None:
    """Run programs until stdin ends."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    for number, line in enumerate(sys.stdin):
        ended = run(json.loads(line), f"<program {number + 1}>")
        sys.stderr.flush()
        print(f"\n{END}{ended}", flush=True)


if __name__ == "__main__":
    main()
