"""Ask real Flink for the answers of the cases and write them to a file. Not run by the tests.

    python3.11 -m venv ENV && ENV/bin/pip install apache-flink==2.2.1
    JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 ENV/bin/python tests/peers/flink/record.py
    JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 ENV/bin/python tests/peers/flink/record.py random

The first command writes ``recorded.json``, the second one ``random.json.gz``, of the same rows.

Flink needs Java 17 or 11. A query is explained first, which makes Flink refuse what it refuses; the accepted queries
over the same rows then run as one job, each into files of its own. If that job fails, halves of it run until the
query that fails is found.

Every row moves the watermark by more than the interval at which Flink emits watermarks, so each row is followed by one
(the operator emits it at once then), and the answers do not depend on the clock. The columns are nullable: Flink takes
``LAST(B.x, 1)`` of a column that is NOT NULL for one that is never NULL, and folds its IS NULL to FALSE.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cases import Case, Rows, all_cases, all_rows, as_json  # noqa: E402
from pyflink.table import EnvironmentSettings, ExplainDetail, TableEnvironment  # noqa: E402
from random_cases import random_cases  # noqa: E402

COLUMNS = "ticker, ts, `open`, high, low, `close`, volume, quote_volume, trades"
NULL = "NULL_"
IN_A_JOB = 40
END_MS = 2**63 - 1
"""Flink's watermark at the end of its input; its text has a year that no datetime has."""


def environment(folder: Path, name: str, rows: Rows) -> TableEnvironment:
    """Return a Flink environment with the view ``ohlc`` over a file of the rows."""
    file = folder / f"{name}.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([[NULL if value is None else value for value in row] for row in rows.rows])
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = table.get_config()
    config.set("parallelism.default", "1")
    config.set("table.local-time-zone", "UTC")
    config.set("restart-strategy.type", "none")
    # The digest of a MATCH_RECOGNIZE lacks its WITHIN: queries that differ in it alone would share one operator.
    config.set("table.optimizer.reuse-sub-plan-enabled", "false")
    config.set("taskmanager.numberOfTaskSlots", "1")
    config.set("taskmanager.memory.network.min", "256mb")
    config.set("taskmanager.memory.network.max", "256mb")
    table.execute_sql(f"""
        CREATE TABLE raw_rows (
          ticker STRING, ts_ms BIGINT, `open` DOUBLE, high DOUBLE, low DOUBLE, `close` DOUBLE, volume DOUBLE,
          quote_volume DOUBLE, trades BIGINT, ts AS TO_TIMESTAMP_LTZ(ts_ms, 3),
          WATERMARK FOR ts AS ts - INTERVAL '{rows.delay_ms // 1_000}' SECOND(3)
        ) WITH ('connector' = 'filesystem', 'path' = '{file}', 'format' = 'csv', 'csv.null-literal' = '{NULL}')""")
    table.execute_sql(f"CREATE VIEW ohlc AS SELECT {COLUMNS} FROM raw_rows")
    return table


def sink(name: str) -> str:
    """Return the name of the table into which a case writes."""
    return f"sink_{name}"


def prepare(table: TableEnvironment, folder: Path, case: Case) -> dict[str, Any]:
    """Return the columns of a query and create its sink, or return why Flink refuses it."""
    try:
        columns = table.sql_query(case.sql.rstrip().removesuffix(";"))._j_table.getResolvedSchema().getColumns()
        kinds = [columns.get(n).getDataType().getLogicalType() for n in range(columns.size())]
        physical = ", ".join(
            f"c{n} {kind.copy(True).asSerializableString().replace(' *ROWTIME*', '')}" for n, kind in enumerate(kinds)
        )
        table.execute_sql(
            f"CREATE TABLE {sink(case.name)} ({physical}) WITH ('connector' = 'filesystem', "
            f"'path' = '{folder / case.name}', 'format' = 'csv', 'csv.null-literal' = '{NULL}')"
        )
        table.explain_sql(insert(case), ExplainDetail.JSON_EXECUTION_PLAN)
    except Exception as error:
        return {"refused": reason(error)}
    return {"columns": [[columns.get(n).getName(), kind.asSummaryString()] for n, kind in enumerate(kinds)]}


def insert(case: Case) -> str:
    """Return the statement that runs a case."""
    return f"INSERT INTO {sink(case.name)} {case.sql.rstrip().removesuffix(';')}"


def run(table: TableEnvironment, folder: Path, cases: list[Case], answers: dict[str, Any]) -> None:
    """Run queries as one job and read their files; look for the one that fails if the job does."""
    statements = table.create_statement_set()
    for case in cases:
        statements.add_insert_sql(insert(case))
    try:
        statements.execute().wait()
    except Exception as error:
        if len(cases) == 1:
            answers[cases[0].name]["failed"] = reason(error)
            print(cases[0].name, "failed", flush=True)
            return
        middle = len(cases) // 2
        run(table, folder, cases[:middle], answers)
        run(table, folder, cases[middle:], answers)
        return
    for case in cases:
        kinds = [kind for _, kind in answers[case.name]["columns"]]
        answers[case.name]["rows"] = read(folder / case.name, kinds)
        print(case.name, len(answers[case.name]["rows"]), "rows", flush=True)


def read(folder: Path, kinds: list[str]) -> list[list[Any]]:
    """Return the rows of a sink, with the types of JSON."""
    found: list[list[Any]] = []
    for file in sorted(folder.glob("part-*")) if folder.exists() else ():
        with file.open(newline="") as text:
            for line in csv.reader(text):
                found.append([value(cell, kind) for cell, kind in zip(line, kinds, strict=True)])
    return found


def value(cell: str, kind: str) -> Any:
    """Return a value of a CSV file: times as milliseconds, DECIMAL as text."""
    if cell == NULL:
        return None
    if kind.startswith(("BIGINT", "INT ", "INT")) and not kind.startswith("INTERVAL"):
        return int(cell)
    if kind.startswith("DOUBLE"):
        return float(cell)
    if kind.startswith("BOOLEAN"):
        return cell == "true"
    if kind.startswith("TIMESTAMP"):
        if re.match(r"\+?\d{5,}-", cell):
            return END_MS
        moment = datetime.datetime.fromisoformat(cell.removesuffix("Z")).replace(tzinfo=datetime.UTC)
        return round(moment.timestamp() * 1_000)
    return cell


def reason(error: Exception) -> str:
    """Return the innermost cause in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1] if causes else " ".join(lines[:2]) if lines else repr(error))[:300]


def record(cases: list[Case]) -> dict[str, Any]:
    """Return the answers to cases by name."""
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, rows in all_rows().items():
            table = environment(folder, name, rows)
            read_here = [case for case in cases if case.rows == name]
            for case in read_here:
                answers[case.name] = {"sql": case.sql, "reads": name, **prepare(table, folder, case)}
                print(case.name, answers[case.name].get("refused", "accepted"), flush=True)
            accepted = [case for case in read_here if "columns" in answers[case.name]]
            safe = [case for case in accepted if not case.name.startswith("refused_")]
            for batch in (safe, *([case] for case in accepted if case not in safe)):
                for first in range(0, len(batch), IN_A_JOB):
                    run(table, folder, batch[first : first + IN_A_JOB], answers)
    return answers


def main() -> None:
    """Record all cases, or the random ones."""
    if sys.argv[1:] == ["random"]:
        text = json.dumps({"flink": "2.2.1", "cases": record(random_cases())}, separators=(",", ":"))
        (HERE / "random.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    recorded = {"flink": "2.2.1", "rows": {n: as_json(each) for n, each in all_rows().items()}}
    (HERE / "recorded.json").write_text(dump({**recorded, "cases": record(all_cases())}))


def dump(recorded: dict[str, Any]) -> str:
    """Return JSON with a line for each row, so that a difference is readable."""
    lines = ["{", f' "flink": {json.dumps(recorded["flink"])},']
    for part in ("rows", "cases"):
        lines.append(f' "{part}": {{')
        for name, each in recorded[part].items():
            lines.append(f"  {json.dumps(name)}: {{")
            for key, value in each.items():
                if key == "rows":
                    inner = ",\n".join(f"    {json.dumps(row)}" for row in value)
                    lines.append(f"   {json.dumps(key)}: [\n{inner}\n   ],")
                else:
                    lines.append(f"   {json.dumps(key)}: {json.dumps(value)},")
            lines[-1] = lines[-1].removesuffix(",")
            lines.append("  },")
        lines[-1] = lines[-1].removesuffix(",")
        lines.append(" },")
    lines[-1] = lines[-1].removesuffix(",")
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    main()
