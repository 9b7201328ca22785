"""Our agent and Kapacitor's own Python agent under Kapacitor's host: CPU of the UDF's process for each point.

The host is built from Kapacitor's module, and the agent is taken from it, with the messages generated from our copy of
its proto: those of the module are too old for the installed protobuf. Without Go or the module there is no row.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / "bench" / "kapacitor_host"
FEW, MANY = 2_000, 42_000
"""Two runs, whose difference leaves out the start."""


def rows() -> Iterator[list[str]]:
    """Yield a row for each edge and agent; one that says what is missing, if something is."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        try:
            agent = built(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            yield ["Kapacitor's host", "absent", str(error)[:100], ""]
            return
        ours = [sys.executable, "-m", "dexorder.udf.functions"]
        for edge, function, example in (
            ("stream", "moving_average", "moving_avg"),
            ("batch", "batch_outliers", "outliers"),
        ):
            yield _row(folder, edge, "ours", [*ours, function])
            yield _row(folder, edge, "Kapacitor's Python", [sys.executable, str(agent / f"{example}.py")])


def built(folder: Path) -> Path:
    """Build Kapacitor's host as ``host`` in a folder, with its Python agent as package beside it."""
    subprocess.run(["go", "build", "-o", f"{folder}/host", "."], cwd=HOST, check=True)
    listed = ["go", "list", "-m", "-f", "{{.Dir}}", "github.com/influxdata/kapacitor"]
    module = Path(subprocess.run(listed, cwd=HOST, check=True, capture_output=True, text=True).stdout.strip())
    source = module / "udf" / "agent"
    package = folder / "kapacitor" / "udf"
    package.mkdir(parents=True)
    for each in ("__init__.py", "udf/__init__.py", "udf/agent.py"):
        shutil.copyfile(source / "py" / "kapacitor" / each, folder / "kapacitor" / each)
    protos = ROOT / "protos" / "vendor" / "udf"
    compiler = [sys.executable, "-m", "grpc_tools.protoc", f"-I{protos}", f"--python_out={package}", "udf.proto"]
    subprocess.run(compiler, check=True)
    for example in ("moving_avg", "outliers"):
        text = (source / "examples" / example / f"{example}.py").read_text()
        # it gives text where the protocol has bytes
        (folder / f"{example}.py").write_text(text.replace("snapshot.snapshot = ''", "snapshot.snapshot = b''"))
    return folder


def _row(folder: Path, edge: str, name: str, command: Sequence[str]) -> list[str]:
    runs = [_run(folder, edge, count, command) for count in (FEW, MANY)]
    cpu_us = (runs[1]["udf_cpu_seconds"] - runs[0]["udf_cpu_seconds"]) / (MANY - FEW) * 1e6
    late = f"{runs[1]['worst_ms']:.1f}" if edge == "stream" else ""
    return [f"{edge}, {name}", f"{cpu_us:.1f}", f"{runs[1]['points_per_second']:,.0f}", late]


def _run(folder: Path, edge: str, count: int, command: Sequence[str]) -> dict[str, float]:
    path = f"{folder}:{ROOT}"
    option = "as" if str(folder) in command[-1] else "output"
    environment = {**os.environ, "PYTHONPATH": path, "AS_OPTION": option}
    done = subprocess.run(
        [f"{folder}/host", edge, str(count), *command], env=environment, check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found
