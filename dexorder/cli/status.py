"""``dexorder status``: every part of a running suite, asked now."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dexorder.cli import output
from dexorder.errors import SuiteFailed
from dexorder.supervisor import health
from dexorder.supervisor.state import PartState, SuiteState, find_directory, process_alive, read_state


def run(directory: Path | None, relay: str | None, as_json: bool) -> int:
    """Print the parts; exit code 0 only when the supervisor and every part of it are alive and ready."""
    found = find_directory(directory, relay)
    suite = read_state(found) if found is not None else None
    if suite is None:
        where = f" in {found}" if found is not None else ""
        raise SuiteFailed(f"no suite is running{where}; start one with `dexorder up`, or name its folder with --dir")
    rows = asyncio.run(_ask_all(suite))
    supervised = process_alive(suite.pid)
    ready = supervised and bool(rows) and all(row["ready"] for row in rows)
    if as_json:
        output.print_json(
            {
                "ready": ready,
                "dir": str(found),
                "pid": suite.pid,
                "started_at": suite.started_at,
                "relay": suite.relay,
                "parts": {row.pop("part"): row for row in rows},
            }
        )
        return 0 if ready else 1
    cells = [
        (row["part"], str(row["pid"] or "-"), row["address"], "yes" if row["ready"] else "no", row["detail"])
        for row in rows
    ]
    output.stdout().print(output.plain_table(("part", "pid", "address", "ready", "detail"), cells))
    if not supervised:
        output.stderr().print(f"the suite's supervisor, process {suite.pid}, is gone: start it again (dexorder up)")
    return 0 if ready else 1


async def _ask_all(suite: SuiteState) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(_ask(name, part) for name, part in suite.parts.items())))


async def _ask(name: str, part: PartState) -> dict[str, Any]:
    answer = await health.check(part.health, timeout_s=2.0)
    alive = process_alive(part.pid)
    if not alive and answer.ready:
        answer = health.Health(False, "another process answers at its address")
    notes = [answer.detail]
    if not alive:
        notes = [part.detail or "not running"]
    if part.state == "failing":
        notes.append("dies again and again")
    if part.restarts:
        notes.append(f"restarted {part.restarts} time{'s' if part.restarts > 1 else ''}")
    return {
        "part": name,
        "pid": part.pid if alive else None,
        "address": part.address,
        "ready": answer.ready and alive,
        "state": part.state,
        "restarts": part.restarts,
        "detail": "; ".join(filter(None, notes)),
    }
