"""Embedded Kafka: one real broker that is its own controller (KRaft), on loopback, for the local suite.

``python -m dexorder.supervisor.kafka --dir DIR --port P --controller-port Q`` prepares DIR/kafka and then *becomes* the
Java process, so its parent watches, signals and reaps one process. It logs warnings to its stdout.
SIGTERM stops it cleanly; after a kill it recovers its log at the next start. Ports may differ from start to start.

DIR/kafka holds ``server.properties`` (written at every start), ``data`` (the log; its ``meta.properties`` keeps the
cluster's id) and ``lock``, which the process holds until it ends; its text is the process id.
"""

import argparse
import base64
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from dexorder.setup.class_archive import archive_path, kafka_program, options_with
from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import Java, find_java
from dexorder_common.storage.process_lock import Locked, take_lock

HOST = "127.0.0.1"
HEAP_MB = 384
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_FORMAT_TIMEOUT_SECONDS = 120


def kafka_properties(data: Path, *, port: int, controller_port: int, advertised_port: int | None = None) -> str:
    """Return the text of the broker's settings file. ``data`` is its only log folder, an absolute path.

    The broker connects to itself at ``controller_port``. Clients receive ``advertised_port``, if a proxy is in between.
    """
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{advertised_port or port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": data,
        # The owner of a topic creates it with its partitions; a misspelled name must not create one.
        "auto.create.topics.enable": "false",
        "num.partitions": 4,
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "replica.fetch.max.bytes": MAX_MESSAGE_BYTES,
        # One node: internal topics cannot have more copies; 50 partitions of each would only slow the start.
        "default.replication.factor": 1,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 4,
        # The default waits 3 s for more members before the first assignment.
        "group.initial.rebalance.delay.ms": 0,
        # After a kill the controller refuses the new broker until the old one's session is over: 9 s by default.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # A suite may be stopped for weeks; a group without offsets would read everything again.
        "offsets.retention.minutes": 60 * 24 * 365,
        "log.retention.hours": 24 * 7,
        # The defaults are for big machines: threads by the dozen and 128 MB of heap for the log cleaner.
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        "background.threads": 4,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
    }
    # In a Java properties file a backslash starts an escape.
    return "".join(f"{name}={value}\n" for name, value in settings.items()).replace("\\", "\\\\")


def java_command(java: Java, jars: Path, main: str, arguments: Sequence[str], *, heap_mb: int) -> list[str]:
    """Return the command that runs one of Kafka's classes, logging warnings to its stdout."""
    return [
        str(java.executable),
        "-Xms64m",
        f"-Xmx{heap_mb}m",
        # Java's second compiler used more CPU time during a backfill than it saved.
        "-XX:TieredStopAtLevel=1",
        # A broker that is out of memory works badly for a long time; a dead one is restarted.
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        *options_with(archive_path(kafka_program(jars), java)),
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",  # Java does not read TMPDIR
        "-Dorg.slf4j.simpleLogger.logFile=System.out",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        "-cp",
        f"{jars}/*",
        main,
        *arguments,
    ]


def kafka_command(java: Java, jars: Path, properties: Path) -> list[str]:
    """Return the command that runs the broker in the foreground."""
    return java_command(java, jars, "kafka.Kafka", [str(properties)], heap_mb=HEAP_MB)


def format_storage(
    java: Java, jars: Path, root: Path, *, port: int, controller_port: int, scram: Sequence[str] = ()
) -> None:
    """Create a formatted log folder ``root/data`` with a new cluster id if it is missing.

    Formatting writes several files, so it happens in another folder that is renamed at the end, and a kill in between
    leaves no incomplete folder. ``scram`` are initial users, ``SCRAM-SHA-256=[name=...,password=...]``.
    """
    if (root / "data" / "meta.properties").is_file():
        return
    fresh = root / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    properties = root / "format.properties"
    properties.write_text(kafka_properties(fresh, port=port, controller_port=controller_port))
    arguments = ["format", "--cluster-id", new_cluster_id(), "--config", str(properties)]
    arguments += [word for user in scram for word in ("--add-scram", user)]
    command = java_command(java, jars, "kafka.tools.StorageTool", arguments, heap_mb=128)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FORMAT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise SetupError(f"Formatting Kafka's log folder took longer than {_FORMAT_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise SetupError(f"Formatting Kafka's log folder {fresh} failed: {lines[-1]}")
    fresh.rename(root / "data")
    properties.unlink()


def new_cluster_id() -> str:
    """Return a random cluster id: 16 bytes as 22 URL-safe base64 characters, not starting with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass  # a leading dash would be read as an option
    return text


def hold_lock(root: Path) -> int:
    """Lock the folder for this process, and keep the lock after ``exec``; the end of the process releases it.

    Kafka takes its own lock too late: before that, a second broker on the folder opens the first one's metadata log for
    writing and damages it (observed with 3.9.1). Such a second broker starts when a suite's supervisor was killed.

    Returns the open file that holds the lock; closing it unlocks. SetupError names another process that holds it.
    """
    try:
        handle = take_lock(root / "lock")
    except Locked as locked:
        raise SetupError(f"Another Kafka, process {locked.holder}, runs on {root}: stop it first") from None
    os.set_inheritable(handle, True)
    return handle


def prepare(
    suite_dir: Path,
    *,
    port: int,
    controller_port: int,
    advertised_port: int | None = None,
    properties: Path | None = None,
    scram: Sequence[str] = (),
) -> list[str]:
    """Lock the folder, write the settings, format the log if needed, and return the command of the broker.

    ``properties`` is a file of settings that extend or override ours. SetupError if Java or a jar is missing, the
    folder is in use, or formatting failed.
    """
    java, jars = find_java(), jar_folder("kafka")
    root = suite_dir.absolute() / "kafka"
    root.mkdir(parents=True, exist_ok=True)
    hold_lock(root)
    format_storage(java, jars, root, port=port, controller_port=controller_port, scram=scram)
    settings = kafka_properties(
        root / "data", port=port, controller_port=controller_port, advertised_port=advertised_port
    )
    # Java takes the last of duplicate names.
    (root / "server.properties").write_text(settings + (properties.read_text() if properties else ""))
    return kafka_command(java, jars, root / "server.properties")


def wait_ready(bootstrap: str, timeout_s: float) -> None:
    """Wait until a broker answers with its metadata; TimeoutError has the last reason why none does."""
    # Refused connections are expected while the broker starts; librdkafka would print each of them.
    options: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
    deadline = time.monotonic() + timeout_s
    reason = "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            # A client that has learned the advertised port asks only there, where a proxy may not listen yet.
            if AdminClient(options).list_topics(timeout=min(left, 1.0)).brokers:
                return
        except KafkaException as error:
            reason = str(error.args[0])
    raise TimeoutError(f"Kafka at {bootstrap} did not answer within {timeout_s:g} s: {reason}")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Prepare and become the broker; exits with status 1 and one sentence on stderr if it cannot."""
    parser = argparse.ArgumentParser(prog="python -m dexorder.supervisor.kafka", description=__doc__.split("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="the suite's folder; Kafka uses DIR/kafka")
    parser.add_argument("--port", type=int, required=True, help="port for clients on 127.0.0.1")
    parser.add_argument("--controller-port", type=int, required=True, help="port of the broker's controller")
    parser.add_argument("--advertised-port", type=int, help="port that clients receive from the broker, behind a proxy")
    parser.add_argument("--properties", type=Path, help="file of settings that extend or override the broker's")
    parser.add_argument("--add-scram", action="append", default=[], help="initial user, in the form of kafka-storage")
    options = parser.parse_args(arguments)
    given = {name: getattr(options, name) for name in ("port", "controller_port", "advertised_port", "properties")}
    try:
        command = prepare(options.dir, **given, scram=options.add_scram)
    except SetupError as error:
        sys.exit(f"dexorder.supervisor.kafka: {error}")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
