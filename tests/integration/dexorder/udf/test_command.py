"""``dexorder udf run`` and ``serve``."""

from __future__ import annotations

import datetime as dt
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dexorder_udf.host import UdfHost
from dexorder_udf.points import Point
from dexorder_udf.spec import UdfSpec
from tests.paths import ROOT
from tests.rig.command import dexorder

ROWS = "".join(json.dumps({"time": n, "ticker": "A", "close": float(n), "value": float(n)}) + "\n" for n in range(8))
AGENT = shlex.join((sys.executable, str(ROOT / "tests" / "peers" / "udf_agent.py")))


def run(*arguments: str, text: str = ROWS) -> tuple[int, str, str]:
    result = dexorder("udf", *arguments, stdin=text)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_program_runs_over_stdin() -> None:
    code, out, err = run("run", "--prog", f"{AGENT} average", "--option", "size=2", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "8 points in, 8 out\n")
    assert rows[7] == {
        "time": "1970-01-01T00:00:07Z",
        "name": "ohlc",
        "group": "ticker=A",
        "tags": {"ticker": "A"},
        "fields": {"mean": 6.5},
    }


def test_a_shipped_function_runs_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(ROWS)
    code, out, err = run("run", "moving_average", "--option", "size=4", "--input", str(file), "--rows", "2")
    assert (code, err) == (0, "8 points in, 5 out\n")
    assert out.split()[:4] == ["time", "name", "ticker", "mean"]
    assert "2.5" in out and "... 3 more" in out


def test_batches_need_a_window() -> None:
    code, out, err = run("run", "batch_outliers", "--option", "scale=1.4", "--window", "4s", "--json")
    assert code == 0, err
    assert [[point["fields"]["close"] for point in json.loads(line)["points"]] for line in out.splitlines()] == [[], []]
    assert run("run", "batch_outliers")[2] == (
        "dexorder: --window: the UDF wants batches; give their length, for example 1h\n"
    )
    assert "leave it out" in run("run", "rsi", "--window", "1h")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "--prog", f"{AGENT} average", "--option", "sise=2"), 'has no option "sise"; its options: size'),
        (("run", "nothing"), "'nothing' is not one of the functions moving_average, ema"),
        (("run",), "give a function's name, --prog, --socket or --grpc"),
        (("run", "ema", "--prog", "x"), "give a function's name or one of"),
        (("run", "ema", "--window", "x"), "--window: 'x' is not a duration"),
        (("run", "ema", "--option", "field=price"), 'the point has no field "price"; its fields: close, value'),
        (("serve", "nothing"), "'nothing' is not one of the functions"),
        (("serve", "ema", "--socket", "/no/such/folder/x"), "socket /no/such/folder/x"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], words: str) -> None:
    code, out, err = run(*arguments)
    expected = 1 if "sise=2" in arguments or "field=price" in arguments or "/no/such/folder/x" in arguments else 2
    assert (code, out) == (expected, "") and words in err and err.splitlines()[-1].startswith("dexorder: ")


def test_serve_is_a_program_for_kapacitor() -> None:
    host = UdfHost(UdfSpec("ema", prog=sys.executable, args=("-m", "dexorder", "udf", "serve", "ema", "--stdio")))
    host.start()
    host.process([Point(n, {}, {"close": 1.0}) for n in range(20)])
    assert [each.fields for each in host.checkpoint()[0] if isinstance(each, Point)] == [{"ema": 1.0}]
    host.close()


def test_functions_are_listed_with_their_options() -> None:
    code, out, _ = run("functions", "--json")
    (resample,) = [each for each in json.loads(out) if each["function"] == "resample"]
    assert code == 0 and resample["options"]["every"]["default"] == 3600 * 10**9
    assert "macd: MACD, its signal" in run("functions")[1]


def test_a_udf_that_dies_shows_its_words() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "dexorder", "udf", "run", "--prog", f"{AGENT} nothing"],
        input=ROWS,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert process.returncode == 1
    assert "exit code 1; its last line on stderr: KeyError: 'nothing'" in process.stderr


def test_a_line_that_arrives_is_answered_before_the_next_one_comes() -> None:
    """As with ``tail -f``: the input stays open."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dexorder", "udf", "run", "--prog", f"{AGENT} average", "--option", "size=1", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin and process.stdout
    with process:
        for line in ROWS.splitlines()[:3]:
            process.stdin.write(line + "\n")
            process.stdin.flush()
            value = json.loads(line)["value"]
            assert json.loads(process.stdout.readline())["fields"] == {"mean": value}
        process.stdin.close()


def test_a_udf_that_gives_no_snapshot_runs_over_a_file(tmp_path: Path) -> None:
    """As Kapacitor's own mirror in Python does."""
    code, out, err = run("run", "--prog", f"{AGENT} no_snapshot", "--json")
    assert (code, err) == (0, "8 points in, 8 out\n")
    assert [json.loads(line)["fields"]["close"] for line in out.splitlines()] == [float(n) for n in range(8)]


def test_the_output_goes_to_a_file_and_a_page(tmp_path: Path) -> None:
    file, page = tmp_path / "a.parquet", tmp_path / "page.html"
    options = ("--option", "fast=2", "--option", "slow=3", "--option", "signal=1")
    code, _, err = run("run", "macd", *options, "--out", str(file), "--plot", str(page))
    assert code == 0, err
    rows = pq.read_table(file)
    assert rows.column_names == ["time", "name", "ticker", "histogram", "macd", "signal"]
    assert rows.column("time").to_pylist()[0] == dt.datetime.fromtimestamp(2, dt.UTC) and len(rows) == 6
    assert '"name":"A macd"' in page.read_text()
    assert "unknown extension" in run("run", "ema", "--out", "x.doc")[2]
