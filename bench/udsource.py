"""Plain reads and acks of udsource beside pynumaflow and beside grpcio at its best, in the same run.

    .venv/bin/python -m bench.udsource [--transports | --numaflow-go CHECKOUT] [--records N] [--rounds N] [--small]

ReadFn and AckFn over a unix socket with payloads of 1 KiB, a key and a header. One client reads a batch, acks it and
reads the next, as Numaflow does. udsource reads a Kafka topic of 4 partitions; pynumaflow has its records in memory,
and grpcio's best sends the same serialized bytes for each. Client and servers are separate processes; the servers
alternate. Prints Markdown. ``--small`` only shows that the script works, ``--transports`` measures udsource alone on
each transport, ``--numaflow-go`` the native one beside a source that is built on a checkout of numaflow-go.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.parts import pixy_raw, source_processes
from bench.parts.pixy_processes import Server
from bench.parts.source_load import Job
from tests.rig import report
from tests.rig.kafka import RunningKafka
from tests.rig.report import Row

TOPIC = "bench-source"
PAYLOAD_BYTES = len(pixy_raw.VALUE)
BATCHES = (500, 5_000)
OURS = "ours"
TRANSPORTS = ("native", "grpcio")
NUMAFLOW_GO = "numaflow-go"
AIMS = {"pynumaflow": 1.8, "grpcio's best": 0.7}
"""The others, and what we want to reach of their rate."""
GO_AIM = 0.6


@dataclass(frozen=True)
class Plan:
    """Amounts and repetitions.

    Attributes:
        records: Records measured in each round of each server, for each batch size.
        warm: Records read before them in each round.
    """

    rounds: int
    records: int
    warm: int

    @property
    def total(self) -> int:
        """Total number of records that each server delivers."""
        return self.rounds * len(BATCHES) * (self.warm + self.records)


FULL = Plan(rounds=5, records=50_000, warm=10_000)
SMALL = Plan(rounds=1, records=5_000, warm=1_000)


@dataclass
class Samples:
    """One figure for each server and round."""

    rates: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Records that really came in an answer."""

    def text(self, side: str) -> str:
        """Return the medians of a server as text."""
        rate, cpu_us, size = (statistics.median(each[side]) for each in (self.rates, self.cpu_us, self.sizes))
        return f"{rate:,.0f} msgs/s, {cpu_us:.1f} us, {size:,.0f} a batch"

    def ratio(self, other: str) -> float:
        """Return the ratio of udsource's rate to another's, as the median of the rounds."""
        return statistics.median(o / t for o, t in zip(self.rates[OURS], self.rates[other], strict=True))


def measure(plan: Plan, folder: Path) -> dict[int, Samples]:
    """Return samples by batch size of udsource and the servers beside it."""
    with ExitStack() as stack:
        broker = prepared_broker(stack, plan, folder)
        sockets = {side: socket_in(folder / f"{number}") for number, side in enumerate((OURS, *AIMS))}
        servers = {
            OURS: source_processes.udsource(broker.bootstrap, TOPIC, sockets[OURS]),
            "pynumaflow": source_processes.pynumaflow(
                sockets["pynumaflow"], plan.total, PAYLOAD_BYTES, pixy_raw.PARTITIONS
            ),
            "grpcio's best": source_processes.best(sockets["grpcio's best"], PAYLOAD_BYTES),
        }
        return in_turns(stack, plan, servers, sockets)


def measure_transports(plan: Plan, folder: Path) -> dict[int, Samples]:
    """Return samples of udsource on each transport, each with a group of its own."""
    with ExitStack() as stack:
        broker = prepared_broker(stack, plan, folder)
        sockets = {side: socket_in(folder / side) for side in TRANSPORTS}
        servers = {
            side: source_processes.udsource(broker.bootstrap, TOPIC, socket, side) for side, socket in sockets.items()
        }
        return in_turns(stack, plan, servers, sockets)


def measure_numaflow_go(plan: Plan, folder: Path, checkout: Path) -> dict[int, Samples]:
    """Return samples of udsource on the native transport and of a source on numaflow-go."""
    with ExitStack() as stack:
        broker = prepared_broker(stack, plan, folder)
        sockets = {side: socket_in(folder / side) for side in (OURS, NUMAFLOW_GO)}
        servers = {
            OURS: source_processes.udsource(broker.bootstrap, TOPIC, sockets[OURS], "native"),
            NUMAFLOW_GO: source_processes.numaflow_go(
                checkout, sockets[NUMAFLOW_GO], PAYLOAD_BYTES, pixy_raw.PARTITIONS
            ),
        }
        return in_turns(stack, plan, servers, sockets)


def prepared_broker(stack: ExitStack, plan: Plan, folder: Path) -> RunningKafka:
    """Return a broker that has the records of the plan, until the stack is closed."""
    broker = RunningKafka(folder)
    stack.callback(broker.stop)
    pixy_raw.make_topic(broker.bootstrap, TOPIC)
    preload(broker.bootstrap, plan.total)
    return broker


def in_turns(
    stack: ExitStack, plan: Plan, servers: Mapping[str, AbstractContextManager[Server]], sockets: Mapping[str, Path]
) -> dict[int, Samples]:
    """Return samples by batch size; each round measures every server, in alternating order."""
    results: dict[int, Samples] = defaultdict(Samples)
    running = {side: stack.enter_context(server) for side, server in servers.items()}
    client = stack.enter_context(source_processes.load())
    for number in range(plan.rounds):
        for batch in BATCHES:
            for side in list(running)[:: 1 if number % 2 == 0 else -1]:
                turn(plan, client, results[batch], side, running[side], sockets[side], batch)
    return results


def transports_table(results: dict[int, Samples]) -> str:
    """Return the table of both transports."""
    native, grpcio = TRANSPORTS
    rows = []
    for batch, samples in results.items():
        ratio = statistics.median(samples.rates[native]) / statistics.median(samples.rates[grpcio])
        rows.append(Row(f"batches of {batch:,}", samples.text(native), samples.text(grpcio), f"{ratio:.2f}"))
    return report.table("Read and acked records on the native transport; limit: on grpcio", rows)


def socket_in(folder: Path) -> Path:
    """Return a path for a server's socket in a folder of its own, as its info file is beside it."""
    folder.mkdir()
    return folder / "source.sock"


def turn(
    plan: Plan, client: source_processes.Load, samples: Samples, side: str, server: Server, socket: Path, batch: int
) -> None:
    job = Job(str(socket), batch, plan.warm, plan.records, PAYLOAD_BYTES)
    before_s = server.cpu_seconds()
    measured = client.run(job)
    samples.rates[side].append(measured.rate)
    samples.sizes[side].append(plan.records / measured.batches)
    samples.cpu_us[side].append((server.cpu_seconds() - before_s) / (plan.warm + plan.records) * 1e6)


def preload(bootstrap: str, records: int) -> None:
    """Produce records, alternating between partitions."""
    producer = pixy_raw.producer(bootstrap)
    for number in range(records):
        queued = False
        while not queued:
            try:
                producer.produce(
                    TOPIC,
                    pixy_raw.VALUE,
                    b"key-%d" % (number % 100),
                    number % pixy_raw.PARTITIONS,
                    headers=[("h", b"v")],
                )
                queued = True
            except BufferError:
                producer.poll(0.01)
    if left := producer.flush(120):
        raise AssertionError(f"{left} records were not written")


def table(results: dict[int, Samples], aims: Mapping[str, float]) -> str:
    """Return a table of rates and of the server's CPU time for each record, both ways included."""
    rows = []
    for batch, samples in results.items():
        for other, aim in aims.items():
            ratio = samples.ratio(other)
            rows.append(
                Row(
                    f"batches of {batch:,}, beside {other}",
                    samples.text(OURS),
                    samples.text(other),
                    f"{ratio:.2f}",
                    f"at least {aim}: {'ok' if ratio >= aim else 'short'}",
                )
            )
    return report.table(
        "ReadFn and AckFn: records a second, the server's CPU a record, records a batch; limit: the other server", rows
    )


def main() -> int:
    """Run the measurement and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=FULL.records, help="measured in each turn")
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--transports", action="store_true")
    parser.add_argument("--numaflow-go", type=Path, metavar="CHECKOUT")
    options = parser.parse_args()
    plan = SMALL if options.small else Plan(options.rounds, options.records, FULL.warm)
    print(report.heading("udsource and its peers"), flush=True)
    print(
        f"Medians of {plan.rounds} rounds of {plan.records:,} records in which every server has its turn.\n", flush=True
    )
    with tempfile.TemporaryDirectory() as folder:
        if options.transports:
            print(transports_table(measure_transports(plan, Path(folder))), flush=True)
        elif options.numaflow_go:
            results = measure_numaflow_go(plan, Path(folder), options.numaflow_go)
            print(table(results, {NUMAFLOW_GO: GO_AIM}), flush=True)
        else:
            print(table(measure(plan, Path(folder)), AIMS), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
