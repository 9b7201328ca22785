"""Output of ``dexorder up``."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from dexorder.cli.terminal import output
from dexorder.supervisor.plan import PARTS, SuiteOptions, metrics_addresses, summary_rows
from dexorder.supervisor.state import PartState

_WAIT_SECONDS = 2
_TAIL_BYTES = 4_096
_EVENT = re.compile(r"^\S+Z \[\w+ *\] (.+?)(?: {2,}|$)", re.MULTILINE)


def newest_event(log: Path, begin: int = 0) -> str:
    """Return the text of the newest entry of a part's log, without its fields.

    Args:
        begin: Number of bytes at its start that earlier runs have written.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(begin, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        text = ""
    return next(reversed(_EVENT.findall(text)), "starting")


class ConsoleReporter:
    """Prints the state changes of the parts to stdout, and the parts that are not ready yet."""

    def __init__(self, options: SuiteOptions) -> None:
        self._options = options
        self._out = output.stdout()
        self._started = time.monotonic()
        self._stopping = False
        self._waits_printed = 0
        logs = (options.directory / "logs").glob("*.log")
        self._begins = {log.stem: log.stat().st_size for log in logs}
        count = len(options.parts)
        self._print(f"starting {count} part{'s' if count > 1 else ''} in {options.directory}")

    def part_changed(self, name: str, before: PartState, now: PartState) -> None:
        """Print a change of a part's state."""
        if now.state == before.state:
            return
        match now.state:
            case "ready":
                self._print(f"{name}: ready (process {now.pid}, {now.address})")
            case "restarting" | "failing" if now.pid is None:
                # Its log continues: what it has is not about the next process.
                log = self._options.directory / "logs" / f"{name}.log"
                self._begins[name] = log.stat().st_size if log.exists() else 0
                repeated = " repeatedly" if now.state == "failing" else ""
                self._print(f"{name}: {now.detail}{repeated}; restarting")
            case "stopped" if self._stopping:
                self._print(f"{name}: stopped")
            case "starting":
                self._print(f"{name}: starting")

    def all_ready(self) -> None:
        """Print the addresses, and what to type next."""
        options = self._options
        self._out.print(output.plain_table(("part", "address", "for"), summary_rows(options)))
        for part, address in metrics_addresses(options).items():
            self._out.print(f"metrics of {part}: {address}")
        name = options.catalog.name if options.catalog else "dexorder"
        self._out.print(f'pyiceberg: load_catalog("{name}", **{{')
        for name, value in options.catalog_properties().items():
            self._out.print(f'    "{name}": "{value}",')
        self._out.print("})")
        if "gateway" in options.parts and not options.has_kafka:
            self._out.print(f"KafkaPixy answers UNAVAILABLE until a Kafka runs at {options.bootstrap}")
        # Printed last and with a fixed text, as scripts wait for this line.
        everything = set(options.parts) | ({"kafka"} if options.kafka else set()) == set(PARTS)
        self._print("all parts are ready" if everything else f"ready: {', '.join(options.parts)}")
        if everything:
            self._out.print("next, in another terminal:")
            self._out.print("    dexorder history BTC/USDT.SIM 1h --since -7d --chart")
            self._out.print("    dexorder markets SIM; dexorder watch BTC/USDT.SIM; dexorder status")

    def waiting(self, logs: Mapping[str, Path]) -> None:
        """Say every few seconds for which parts it waits, with the newest line of each one's log."""
        seconds = int(time.monotonic() - self._started)
        if seconds >= self._waits_printed + _WAIT_SECONDS:
            self._waits_printed = seconds
            events = {name: newest_event(log, self._begins.get(name, 0)) for name, log in logs.items()}
            self._print("waiting for " + ", ".join(f"{name} ({event})" for name, event in events.items()))

    def note(self, text: str) -> None:
        """Print a step before the first part starts."""
        self._print(text)

    def stopping(self) -> None:
        """Print that the parts are being stopped."""
        self._stopping = True
        self._waits_printed = int(time.monotonic() - self._started)
        self._print("stopping; a second signal kills the remaining parts")

    def _print(self, text: str) -> None:
        self._out.print(f"[{time.monotonic() - self._started:5.1f} s] {text}")
        self._out.file.flush()
