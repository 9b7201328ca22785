"""Throughput of KafkaPixy, each figure with its limit measured in the same run.

    .venv/bin/python -m bench.pixy [--transports | --peer PROGRAM [--http]] [--rounds N] [--small | --idle]

One broker, topics of 4 partitions, values of 1 KiB, one connection. Client (in Go, ``bench/pixy_load``), gateway and
the empty servers are separate processes that run in turn. Prints Markdown. ``--small`` only shows that the scripts
work. ``--idle`` only measures the cost of callers that wait, ``--transports`` a gateway on each transport, ``--peer``
the native one beside a built Kafka-Pixy, by gRPC or with ``--http`` by the HTTP API.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.parts import pixy_idle, pixy_peer, pixy_processes, pixy_raw, pixy_rounds
from bench.parts.pixy_rounds import FULL, READ, SMALL, WRITE, Plan, Results, Samples
from tests.rig import report
from tests.rig.kafka import RunningKafka
from tests.rig.report import Row

UNARY_TARGET, HTTP_TARGET = 0.85, 0.8
IDLE_CORES, IDLE_THREADS = 0.08, 50


def measure(folder: Path, plan: Plan) -> Iterator[str]:
    """Yield the tables, each as soon as it is measured."""
    broker = RunningKafka(folder)
    try:
        for topic in (WRITE, READ):
            pixy_raw.make_topic(broker.bootstrap, topic)
        pixy_raw.produce_bulk(broker.bootstrap, READ, plan.preload)
        with (
            pixy_processes.gateway(broker.bootstrap) as gateway,
            pixy_processes.empty_server("bare") as bare,
            pixy_processes.empty_server("suite") as suite,
            pixy_processes.load() as load,
        ):
            sides = {"bare": bare, "gateway": gateway, "suite": suite}
            results = pixy_rounds.unary(plan, load, sides, broker.bootstrap)
        yield unary_table(results)
        yield cpu_table(results)
    finally:
        broker.stop()


def measure_transports(folder: Path, plan: Plan) -> Iterator[str]:
    """Yield the table of two gateways, one on each transport."""
    broker = prepared_broker(folder, plan)
    try:
        with (
            pixy_processes.gateway(broker.bootstrap) as grpcio,
            pixy_processes.gateway(broker.bootstrap, "native") as native,
            pixy_processes.load() as load,
        ):
            yield transports_table(pixy_rounds.side_by_side(plan, load, {"grpcio": grpcio, "native": native}))
    finally:
        broker.stop()


def measure_peer(folder: Path, plan: Plan, program: str, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the table of a gateway on the native transport beside a Kafka-Pixy."""
    broker = prepared_broker(folder, plan)
    try:
        with (
            pixy_peer.kafka_pixy(program, broker.bootstrap) as peer,
            pixy_processes.gateway(broker.bootstrap, "native") as native,
            pixy_processes.load() as load,
        ):
            for kind in (each for each in kinds if "consume" in each):
                group = f"{pixy_peer.PEER}-{pixy_rounds.group_of(kind)}"
                pixy_peer.from_the_start(peer, READ, group, pixy_raw.PARTITIONS)
            yield peer_table(pixy_rounds.side_by_side(plan, load, {"native": native, pixy_peer.PEER: peer}, kinds))
    finally:
        broker.stop()


def prepared_broker(folder: Path, plan: Plan) -> RunningKafka:
    """Return a broker with the topics of two sides."""
    broker = RunningKafka(folder)
    for topic in (WRITE, READ):
        pixy_raw.make_topic(broker.bootstrap, topic)
    pixy_raw.produce_bulk(broker.bootstrap, READ, 2 * plan.preload)
    return broker


def transports_table(results: Results) -> str:
    """Return the table of both transports: rates, and the servers' CPU, their Kafka threads included."""
    rows = []
    for (kind, callers), samples in results.items():
        figures = {
            side: f"{samples.rate(side):,.0f}, {statistics.median(samples.cpu_us[side]):.0f} us"
            for side in ("native", "grpcio")
        }
        ratio = samples.rate("native") / samples.rate("grpcio")
        rows.append(Row(f"{kind}, {callers} at a time", figures["native"], figures["grpcio"], f"{ratio:.2f}"))
    title = "Calls a second and CPU a call on the native transport; limit: the same gateway on grpcio"
    return report.table(title, rows)


def peer_table(results: Results) -> str:
    """Return the table of the native transport beside Kafka-Pixy: rates, and the servers' CPU."""
    rows = []
    for (kind, callers), samples in results.items():
        figures = {
            side: (samples.rate(side), statistics.median(samples.cpu_us[side])) for side in ("native", pixy_peer.PEER)
        }
        ours, theirs = figures["native"], figures[pixy_peer.PEER]
        rate, cpu = ours[0] / theirs[0], ours[1] / theirs[1]
        if kind.startswith("http"):
            aim = verdict(rate, HTTP_TARGET)
        else:
            wanted, most = (0.9, 1.2) if (kind, callers) == ("produce sync", 64) else (1.0, 1.0)
            good = rate >= wanted and cpu <= most
            aim = f"at least {wanted} of its rate at {most} of its CPU: {'ok' if good else 'short'}"
        texts = [f"{each_rate:,.0f}, {each_cpu:.0f} us" for each_rate, each_cpu in (ours, theirs)]
        rows.append(Row(f"{kind}, {callers} at a time", texts[0], texts[1], f"{rate:.2f}, CPU {cpu:.2f}", aim))
    return report.table("Calls a second and CPU a call; limit: Kafka-Pixy", rows)


def measure_idle(folder: Path) -> Iterator[str]:
    """Yield the table of callers that wait."""
    broker = RunningKafka(folder)
    try:
        rows = []
        for found in (pixy_idle.measure(broker.bootstrap, groups) for groups in pixy_idle.GROUPS):
            cost = f"{found.threads} threads, {found.cores:.1%} of a core, {found.megabytes:.0f} MB"
            good = found.threads <= IDLE_THREADS and found.cores <= IDLE_CORES
            aim = f"at most {IDLE_THREADS} threads, {IDLE_CORES:.0%}: {'ok' if good else 'short'}"
            rows.append(
                Row(f"groups: {found.groups}, topics in each: {pixy_idle.PAIRS // found.groups}", cost, "", "", aim)
            )
        yield report.table(f"{pixy_idle.PAIRS} pairs of group and topic, each with a caller in a long poll", rows)
    finally:
        broker.stop()


def unary_table(results: Results) -> str:
    """Return the table of unary calls. Targets are relative to plain grpcio; the limit also shows our interceptor."""
    return report.table(
        "Unary calls a second; limit: the same calls to a server with empty handlers",
        [unary_row(kind, callers, samples) for (kind, callers), samples in results.items()],
    )


def unary_row(kind: str, callers: int, samples: Samples) -> Row:
    limit = f"{samples.rate('bare'):,.0f}; {samples.rate('suite'):,.0f} behind our interceptor"
    name, ours = f"{kind}, {callers} at a time", f"{samples.rate('gateway'):,.0f}"
    if kind != "produce sync":
        ratio = samples.ratio("bare")
        return Row(name, ours, limit, f"{ratio:.2f}", verdict(ratio, UNARY_TARGET))
    if callers > 1:
        return Row(name, ours, limit, f"{samples.ratio('bare'):.2f}")
    ratio = samples.ratio("bare", "raw")
    limit += f"; {samples.rate('raw'):,.0f} confluent-kafka one by one; both after another {both(samples):,.0f}"
    return Row(name, ours, limit, f"{ratio:.2f}", verdict(ratio, UNARY_TARGET))


def both(samples: Samples) -> float:
    """Return the rate if each call passes an empty handler and then confluent-kafka, one after the other."""
    return 1 / (1 / samples.rate("bare") + 1 / samples.rate("raw"))


def cpu_table(results: Results) -> str:
    """Return the table of the servers' CPU, the gateway's Kafka threads included."""
    rows = []
    for (kind, callers), samples in results.items():
        bare, suite, ours = (statistics.median(samples.cpu_us[side]) for side in ("bare", "suite", "gateway"))
        limit = f"{bare:.0f}; {suite:.0f} behind our interceptor"
        rows.append(Row(f"{kind}, {callers} at a time", f"{ours:.0f}", limit, f"{ours / bare:.2f}"))
    return report.table("CPU of the server, microseconds a call", rows)


def verdict(ratio: float, target: float) -> str:
    """Return the target, and whether it is reached."""
    return f"at least {target}: {'ok' if ratio >= target else 'short'}"


def main() -> int:
    """Run the measurements and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--transports", action="store_true")
    parser.add_argument("--peer", default="", metavar="PROGRAM", help="a built Kafka-Pixy")
    parser.add_argument("--http", action="store_true", help="calls of the HTTP API")
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    options = parser.parse_args()
    plan = SMALL if options.small else Plan(options.rounds, FULL.seconds)
    print(report.heading("KafkaPixy and its limits"), flush=True)
    print(f"Medians of {plan.rounds} rounds in which every side runs once; 1 KiB, 4 partitions, one connection.\n")
    with tempfile.TemporaryDirectory() as folder:
        if options.idle:
            texts = measure_idle(Path(folder))
        elif options.peer:
            kinds = pixy_rounds.HTTP_KINDS if options.http else pixy_rounds.KINDS
            texts = measure_peer(Path(folder), plan, options.peer, kinds)
        elif options.transports:
            texts = measure_transports(Path(folder), plan)
        else:
            texts = measure(Path(folder), plan)
        for text in texts:
            print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
