"""Execution of docs/notebooks: ``PYTHONPATH=. python docs/execute_notebook.py`` writes the outputs.

A relay, an ingestor with ccxt and the simulated exchange, whose candles are the same in every run, answer it; Kafka and
Spark's driver are played by the tests' `whole`, so that it takes seconds. The kernel runs in an environment of its own
(requirements/peer-notebook.txt) and imports our packages from ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import site
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dexorder_common.model.times import parse_time
from tests.peers.environment import peer_python
from tests.unit.services.ingestor.whole import whole

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "notebooks" / "first.ipynb"
CELL_SECONDS = 120


async def executed(folder: Path) -> dict[str, Any]:
    """Run the notebook; return it with its outputs."""
    exchange = {"now_ns": parse_time("2024-02-01")}
    async with whole(folder, sim=exchange, upsert=True) as chain:
        return await asyncio.to_thread(run_cells, chain.suite.running.address, folder)


def run_cells(relay: str, folder: Path) -> dict[str, Any]:
    """Run the cells against a relay; return the notebook with its outputs. An exception in a cell raises."""
    # A .pth file adds the folders of our packages to the path of this Python alone.
    ours = [str(ROOT), *(each for each in sys.path if Path(each).is_relative_to(ROOT))]
    environment = os.environ | {
        "DEXORDER_RELAY": relay,
        "PYTHONPATH": os.pathsep.join([*ours, *site.getsitepackages()]),
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "COLUMNS": "100",
    }
    fresh = folder / NOTEBOOK.name
    program = (
        "import nbformat, sys; from nbclient import NotebookClient; "
        f"book = nbformat.read({str(NOTEBOOK)!r}, 4); "
        f"NotebookClient(book, timeout={CELL_SECONDS}, kernel_name='python3', record_timing=False).execute(); "
        f"nbformat.write(book, {str(fresh)!r})"
    )
    python = peer_python("notebook")
    run = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    if run.returncode:
        raise RuntimeError(f"the notebook failed: {run.stderr[-4_000:]}")
    return cleaned(json.loads(fresh.read_text()))


def cleaned(book: dict[str, Any]) -> dict[str, Any]:
    """Return a notebook without what differs between two runs: ids of cells, and metadata of kernel and outputs."""
    for number, cell in enumerate(book["cells"]):
        cell["id"] = f"cell-{number}"
        cell["metadata"] = {}
        for output in cell.get("outputs", ()):
            output.get("metadata", {}).clear()
    book["metadata"] = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return book


def texts(book: dict[str, Any]) -> list[str]:
    """Return the outputs of each cell as one text."""
    return [json.dumps(cell.get("outputs", []), sort_keys=True) for cell in book["cells"]]


def main() -> int:
    """Write the notebook's outputs."""
    with tempfile.TemporaryDirectory() as name:
        book = asyncio.run(executed(Path(name)))
    NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK.relative_to(ROOT)}: {NOTEBOOK.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
