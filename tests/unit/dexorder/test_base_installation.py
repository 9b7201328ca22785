"""The client and the command with nothing but what `pip install dexorder` installs, against a real relay."""

from __future__ import annotations

import asyncio
import csv
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from packaging.requirements import Requirement

from dexorder_common.lake.tables import OHLC
from tests.paths import ROOT
from tests.unit.services.relay.harness import EARLIER, TICKER, at, page, suite

MINUTES = 6_000
"""More than one message of the relay."""
PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({barred!r}, None))  # an import of them raises ModuleNotFoundError
from dexorder.cli import main
for words in {commands!r}:
    sys.argv = ["dexorder", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
from dexorder import Client
with Client({relay!r}) as client:
    rows = client.read_stored({ticker!r}, "1m")
print(len(rows), rows["open_time"][-1].as_py().isoformat(), repr(rows).count("\\n"), file=sys.stderr)
for method in ("to_arrow", "to_pandas"):
    try:
        getattr(rows, method)()
    except ModuleNotFoundError as error:
        print(error, file=sys.stderr)
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(wanted: list[str]) -> set[str]:
    """Return the names of the distributions that an installation of these has."""
    found: set[str] = set()
    left = [Requirement(each) for each in wanted]
    while left:
        one = left.pop()
        name = canonical(one.name)
        if name not in found:
            found.add(name)
            needs = map(Requirement, requires(name) or ())
            extras = ["", *one.extras]
            left += [n for n in needs if n.marker is None or any(n.marker.evaluate({"extra": e}) for e in extras)]
    return found


def barred_modules() -> list[str]:
    """Return the modules of this environment that the base installation does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = installed_with(project["dependencies"]) | {"dexorder"}
    owners = packages_distributions()
    return sorted(name for name, dists in owners.items() if not {canonical(each) for each in dists} & base)


def test_pyarrow_and_numpy_are_not_in_the_base_installation() -> None:
    barred = set(barred_modules())
    assert {"pyarrow", "numpy", "pandas", "pyiceberg", "sqlalchemy", "ccxt", "pyspark", "zmq", "plotly"} < barred
    assert not barred & {"arro3", "grpc", "google", "orjson", "pydantic", "rich", "typer", "yaml", "dexorder"}


async def test_everything_of_the_base_works_without_the_extras(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(MINUTES)), pages=[page(EARLIER, 0, MINUTES)])
        address = s.running.address
        asked = ["history", TICKER, "1m", "--since", str(at(0)), "--until", str(at(MINUTES)), "--relay", address, "-q"]
        files = [["--out", f"rows.{each}"] for each in ("parquet", "csv", "jsonl", "arrow")]
        commands = [[*asked, *more] for more in (*files, ["--chart", "--rows", "4"])]
        commands += [["read", TICKER, "1m", "--relay", address, "--json"]]
        commands += [
            ["udf", "run", "moving_average", "--option", "size=3", "--input", f"rows.{each}", "--rows", "1"]
            for each in ("csv", "parquet")
        ]
        code = PROGRAM.format(barred=barred_modules(), commands=commands, relay=address, ticker=TICKER)
        environment = {n: v for n, v in os.environ.items() if not n.startswith("DEXORDER_CATALOG_")}
        environment |= {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")}
        run = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
    assert run.returncode == 0, run.stderr
    said = run.stderr.splitlines()
    assert said[-3] == f"{MINUTES} 2024-01-05T03:59:00+00:00 12"
    assert [line.partition(",")[0] for line in said[-2:]] == ["to_arrow needs pyarrow", "to_pandas needs pandas"]
    opens = [at(minute) // 1_000 for minute in range(MINUTES)]
    parquet = pq.read_table(tmp_path / "rows.parquet")
    assert parquet["open_time"].cast(pa.int64()).to_pylist() == opens
    assert parquet.schema.equals(OHLC.schema.as_arrow(), check_metadata=True)
    assert pa.ipc.open_file(str(tmp_path / "rows.arrow")).read_all().equals(parquet)
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [line["close"] for line in lines] == parquet["close"].to_pylist()
    with (tmp_path / "rows.csv").open() as text:
        assert [float(row["close"]) for row in csv.DictReader(text)] == parquet["close"].to_pylist()
    printed = run.stdout
    assert "volume, max" in printed and f"{MINUTES - 4:,} more" in printed
    assert f'"row_count": {MINUTES}' in printed and printed.count('{"ticker":') == MINUTES
