"""``dexorder up``: the local suite in the foreground."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import typer
from rich.console import Console

from dexorder.cli import output
from dexorder.supervisor.plan import PARTS, Ports, SuiteOptions, metrics_addresses, parse_only, summary_rows
from dexorder.supervisor.prepare import external_catalog, recorded_entries
from dexorder.supervisor.state import PartState, default_directory
from dexorder.supervisor.suite import Reporter, run_suite


def run(
    directory: Path | None,
    base_port: int | None,
    only: str,
    exchanges: Path | None,
    recorded: list[str],
    kafka: str,
    quiet: bool,
) -> None:
    """Until a signal. Usage errors are typer's; SuiteFailed says what stands in the way."""
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
    report = Reporter() if quiet else _Spoken(options).reporter()
    asyncio.run(run_suite(options, exchanges, report))


class _Spoken:
    """Tells on stdout what happens to the parts."""

    def __init__(self, options: SuiteOptions) -> None:
        self._options = options
        self._out: Console = output.stdout()
        self._started = time.monotonic()
        self._ready = False
        self._stopping = False
        count = len(options.parts)
        self._say(f"starting {count} part{'s' if count > 1 else ''} in {options.directory}")

    def reporter(self) -> Reporter:
        return Reporter(self.part_changed, self.all_ready, self.stopping)

    def part_changed(self, name: str, before: PartState, now: PartState) -> None:
        if now.state == before.state:
            return
        match now.state:
            case "ready":
                self._say(f"{name}: ready (process {now.pid}, {now.address})")
            case "restarting" | "failing" if now.pid is None:
                again = "; it keeps dying" if now.state == "failing" else ""
                self._say(f"{name}: {now.detail}{again}; starting it again")
            case "stopped" if self._stopping:
                self._say(f"{name}: stopped")
            case "starting":
                self._say(f"{name}: starting")

    def all_ready(self) -> None:
        options = self._options
        self._out.print(output.plain_table(("what", "address", "for"), summary_rows(options)))
        for part, address in metrics_addresses(options).items():
            self._out.print(f"metrics of {part}: {address}")
        name = options.catalog.name if options.catalog else "dexorder"
        self._out.print(f'pyiceberg: load_catalog("{name}", **{{')
        for name, value in options.catalog_properties().items():
            self._out.print(f'    "{name}": "{value}",')
        self._out.print("})")
        # Said last and in these words: whoever waits for it by reading this output may go on.
        everything = set(options.parts) | ({"kafka"} if options.kafka else set()) == set(PARTS)
        self._say("all parts are ready" if everything else f"ready: {', '.join(options.parts)}")
        if options.ports != Ports():
            spark = f" DEXORDER_SPARK_ADDRESS={options.address('spark')}" if "spark" in options.parts else ""
            self._out.print(f"for client commands: export DEXORDER_RELAY={options.address('relay')}{spark}")

    def stopping(self) -> None:
        self._stopping = True
        self._say("stopping; a second signal kills what is left")

    def _say(self, text: str) -> None:
        self._out.print(f"[{time.monotonic() - self._started:5.1f} s] {text}", markup=False)
        self._out.file.flush()
