"""Process that compiles triggers' texts, each within a limit of CPU time and memory: ``python -m`` this module.

It reads lists of texts from its standard input and writes a verdict for each to its standard output, as JSON after
its length. A text that exceeds a limit ends the process without a verdict; the verdicts before it have been written.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from dexorder_cep import CompiledTrigger, InvalidSql, compile_trigger, differences

LENGTH = struct.Struct(">I")
MAX_CPU_SECONDS = 1.0
MAX_MEMORY_BYTES = 64 << 20
"""Memory of a text beyond the memory of the process."""
Compile = Callable[[str, Mapping[str, str]], CompiledTrigger]


def main(source: BinaryIO, target: BinaryIO, compile_text: Compile = compile_trigger) -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the end of the CPU time ends the process
    while header := source.read(LENGTH.size):
        for given in json.loads(source.read(LENGTH.unpack(header)[0])):
            signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
            limit_memory(MAX_MEMORY_BYTES)
            answer = json.dumps(_verdict(compile_text, *given)).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            target.write(LENGTH.pack(len(answer)) + answer)
            target.flush()


def _verdict(compile_text: Compile, sql: str, parameters: dict[str, str], *before: Any) -> dict[str, Any]:
    """Return the verdict of a text; with the text and the parameters ``before`` an edit, the differences as well."""
    try:
        compiled = compile_text(sql, parameters)
        changed = {"differences": differences(compile_text(*before), compiled)} if before else {}
        return {"period_seconds": compiled.period_seconds, **changed}
    except InvalidSql as error:
        return {"line": error.line, "column": error.column, "reason": error.reason}
    except MemoryError:
        sys.exit(1)
    except Exception as error:
        return {"failure": f"a trigger's text can't be compiled: {error!r}"}


def limit_memory(more_bytes: int) -> None:
    """Let this process take no more memory than it has and ``more_bytes``, on Linux; then MemoryError is raised."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more_bytes, hard))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
