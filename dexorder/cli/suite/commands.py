"""Commands that run and look after a suite: ``up``, ``gateway``, ``status``, ``maintain``, ``backup``, ``restore``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import typer

from dexorder.cli.suite.up_report import ConsoleReporter
from dexorder.cli.terminal import output
from dexorder.client.connection import RelayConnection
from dexorder.errors import DexorderError, MaintenanceFailed, SuiteFailed
from dexorder.supervisor import backup as archives
from dexorder.supervisor import health
from dexorder.supervisor.plan import Ports, SuiteOptions, parse_only
from dexorder.supervisor.prepare import external_catalog, recorded_entries
from dexorder.supervisor.state import (
    SPARK,
    PartState,
    SuiteState,
    address_of,
    default_directory,
    find_directory,
    process_alive,
    read_state,
)
from dexorder.supervisor.suite import Reporter, run_suite
from dexorder_common.model.errors import Code
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import code_of, details_of, error_text
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2
from dexorder_protos.dexorder.pipeline.v1.maintenance_service_pb2_grpc import MaintenanceServiceStub
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb

STATUS_SECONDS = 2.0


def up(
    directory: Path | None,
    base_port: int | None,
    only: str,
    exchanges: Path | None,
    recorded: list[str],
    kafka: str,
    quiet: bool,
) -> None:
    """Run the local suite until a signal. Raises typer.BadParameter for wrong options, SuiteFailed if it can't run."""
    try:
        options = SuiteOptions(
            directory=(directory or default_directory()).absolute(),
            ports=Ports() if base_port is None else Ports.from_base(base_port),
            only=parse_only(only),
            kafka=kafka,
            recorded=recorded_entries(recorded),
            catalog=external_catalog(),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not options.parts:
        raise typer.BadParameter("--only and --kafka leave no part to start")
    report = Reporter()
    if not quiet:
        console = ConsoleReporter(options)
        report = Reporter(console.part_changed, console.all_ready, console.stopping, console.note, console.waiting)
    asyncio.run(run_suite(options, exchanges, report))


def gateway(pixy_config: Path | None) -> None:
    """Run the gateway alone until SIGTERM or Ctrl-C. Invalid settings end the process, with one line for each."""
    from dexorder_common.config import load_settings
    from dexorder_common.rpc import lifecycle
    from dexorder_gateway.config import GatewaySettings
    from dexorder_gateway.server import main

    given: dict[str, Any] = {} if pixy_config is None else {"pixy_config": pixy_config}
    settings = load_settings(GatewaySettings, **given)
    lifecycle.run("gateway", settings, lambda: main(settings))


def status(directory: Path | None, relay: str | None, as_json: bool) -> int:
    """Print the parts of a suite. Return 0 only if the supervisor and every part are alive and ready."""
    found = find_directory(directory, relay)
    suite = read_state(found) if found is not None else None
    if suite is None:
        where = f" in {found}" if found is not None else ""
        raise SuiteFailed(f"no suite is running{where}; start one with `dexorder up`, or name its folder with --dir")
    rows = asyncio.run(_check_parts(suite))
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
        (
            row["part"],
            str(row["pid"] or "-"),
            row["address"],
            row["version"] or "-",
            "yes" if row["ready"] else "no",
            row["detail"],
        )
        for row in rows
    ]
    output.stdout().print(output.plain_table(("part", "pid", "address", "version", "ready", "detail"), cells))
    if not supervised:
        output.stderr().print(f"the supervisor (process {suite.pid}) is not running; start the suite: dexorder up")
    return 0 if ready else 1


async def _check_parts(suite: SuiteState) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*(_check_part(name, part) for name, part in suite.parts.items())))


async def _check_part(name: str, part: PartState) -> dict[str, Any]:
    answer = await health.check(part.health)
    alive = process_alive(part.pid)
    notes = [answer.detail if alive else part.detail or "not running"]
    if name == "relay" and answer.ready:
        notes += await _reasons_to_wait(part.address)
    if name == "gateway" and alive:
        notes.append(await health.kafka_problem(part.address))
    if part.state == "failing":
        notes.append("fails repeatedly")
    if part.restarts:
        notes.append(f"restarted {part.restarts} time{'s' if part.restarts > 1 else ''}")
    return {
        "part": name,
        "pid": part.pid if alive else None,
        "address": part.address,
        "version": await health.version_of(part.health) if alive else None,
        "ready": answer.ready and alive,
        "state": part.state,
        "restarts": part.restarts,
        "detail": "; ".join(filter(None, notes)),
    }


async def _reasons_to_wait(relay: str) -> list[str]:
    """Return why requests make no progress, as far as the relay tells this caller."""
    connection = RelayConnection(relay, STATUS_SECONDS, lambda _: None)
    reasons: Counter[str] = Counter()
    try:
        for state in (pb.REQUEST_STATE_QUEUED, pb.REQUEST_STATE_RUNNING):
            answer = await connection.call(connection.stub.history.ListRequests, pb.ListRequestsRequest(state=state))
            reasons.update(each.progress.waiting for each in answer.records if each.progress.waiting)
    except DexorderError as error:
        return [str(error)]
    finally:
        await connection.close()
    return [f"{count:,} requests wait: {reason}" for reason, count in reasons.items()]


@dataclass(frozen=True, slots=True)
class TableCare:
    """Maintenance of one table, or its dry run. ``removed_files`` counts files that no kept snapshot needs."""

    table: str
    data_files_before: int
    data_files_after: int
    delete_files_before: int
    delete_files_after: int
    expired_snapshots: int
    kept_snapshots: int
    removed_files: int
    took_ms: int


def maintain(spark: str | None, tables: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Compact the tables and expire their snapshots now. Print one row or object for each table."""
    results = asyncio.run(_maintain(spark, tables, dry_run))
    if as_json:
        output.print_json([asdict(each) for each in results])
        return
    columns = ("table", "data files", "delete files", "snapshots expired", "kept", "files removed", "took")
    output.stdout().print(output.plain_table(columns, map(_maintenance_cells, results)))
    if dry_run:
        output.stderr().print("dry run: nothing was changed")


async def _maintain(spark: str | None, tables: Sequence[str], dry_run: bool) -> list[TableCare]:
    """Return the care of each table, which Spark's driver takes as their only writer; MaintenanceFailed if it can't."""
    address = address_of(SPARK, spark)
    err, results = output.stderr(), []
    try:
        channel = open_channel(address)
    except (ValueError, OSError) as error:
        raise DexorderError(f"can't connect to {address}: {error}") from None
    async with channel:
        stub: Any = MaintenanceServiceStub(channel)
        try:
            async for message in stub.Maintain(maintenance_service_pb2.MaintainRequest(tables=tables, dry_run=dry_run)):
                results.append(care := TableCare(*(getattr(message, name) for name in TableCare.__slots__)))
                err.print(f"{care.table}: done in {care.took_ms / 1_000:.1f} s")
        except grpc.aio.AioRpcError as error:
            if code_of(error) is not Code.UNAVAILABLE:
                raise MaintenanceFailed(f"Spark's driver at {address} answered {error_text(error)}") from None
            raise MaintenanceFailed(
                f"Spark's driver at {address} can't do it now ({details_of(error)}); it must be running "
                "(`dexorder up`), or elsewhere: --spark or DEXORDER_SPARK_ADDRESS"
            ) from None
    return results


def _maintenance_cells(result: TableCare) -> tuple[str, ...]:
    return (
        result.table,
        _change(result.data_files_before, result.data_files_after),
        _change(result.delete_files_before, result.delete_files_after),
        f"{result.expired_snapshots:,}",
        f"{result.kept_snapshots:,}",
        f"{result.removed_files:,}",
        f"{result.took_ms / 1_000:.1f} s",
    )


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def backup(directory: Path | None, archive: Path) -> None:
    """Write the state of a stopped suite to an archive. Raises SuiteFailed while the suite runs."""
    source = (directory or default_directory()).absolute()
    _print_contents("written", archives.backup(source, archive, _file_progress("packing")), archive)


def restore(archive: Path, directory: Path | None, yes: bool) -> None:
    """Show the contents of an archive, ask, and restore it to the folder that it was made from."""
    target = (directory or default_directory()).absolute()

    def agree(contents: archives.Contents) -> bool:
        _print_contents("to restore", contents, archive)
        return yes or typer.confirm(f"Write it to {contents.directory}?", err=True)

    _print_contents("restored", archives.restore(archive, target, agree, _file_progress("unpacking")), archive)


def _print_contents(verb: str, contents: archives.Contents, archive: Path) -> None:
    size = f"{contents.files} files, {contents.size_bytes / 1e6:,.1f} MB"
    output.stdout().print(f"{verb}: {size} of {contents.directory} ({archive})")


def _file_progress(verb: str) -> Callable[[str, int], None]:
    err = output.stderr()
    files = size_bytes = 0

    def on_file(name: str, size: int) -> None:
        nonlocal files, size_bytes
        files += 1
        size_bytes += size
        if files % 500 == 0:
            err.print(f"{verb}: {files:,} files, {size_bytes / 1e6:,.0f} MB")

    return on_file
