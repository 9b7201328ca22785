"""``dexorder doctor``: checks whether this machine can run the suite. A failed check says what to do."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import typer

from dexorder.cli.suite import serve
from dexorder.cli.suite.findings import Finding, show
from dexorder.client.connection import relay_address
from dexorder.setup import jars, java
from dexorder.setup.config import SetupError
from dexorder.setup.manifest import check_folder, parse_lock
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import ports_in_use
from dexorder.supervisor.state import default_directory, registered, running_suite
from dexorder_common.config import BadSettings, read_settings, state_folder
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.storage.durable_sqlite import RESET_IS_SAFE

MIN_FREE_GIB = 2.0
MIN_OPEN_FILES = 1_024
_PACKAGES = ("pyspark", "pyiceberg", "pyarrow", "arro3-core", "ccxt", "grpcio", "protobuf", "confluent-kafka", "pyzmq")


def run(directory: Path | None, base_port: int | None, as_json: bool) -> int:
    """Run and print every check. Return 1 if one failed."""
    try:
        ports = Ports() if base_port is None else Ports.from_base(base_port)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    options = SuiteOptions((directory or default_directory()).absolute(), ports)
    checks = (_java, _jars, _settings, _ports, _disk, _limits, _state, _sqlite, _packages)
    findings = [finding for check in checks for finding in check(options)]
    return show(findings, as_json)


def _java(_: SuiteOptions) -> Iterator[Finding]:
    try:
        found = java.find_java()
        yield Finding("java", True, f"{found.version} from {found.source}, {found.home}")
    except SetupError as error:
        yield Finding("java", False, str(error))


def _jars(_: SuiteOptions) -> Iterator[Finding]:
    try:
        locked = parse_lock(jars.LOCK_FILE.read_text())
    except (OSError, SetupError) as error:
        yield Finding("jars", False, f"jars.lock can't be read: {error}")
        return
    names = list(jars.set_names())
    with suppress(BadSettings):  # reported by _settings
        names += read_settings(CatalogSettings).jar_sets
    for name in dict.fromkeys(names):
        try:
            folder = jars.jar_folder(name)
        except SetupError as error:
            yield Finding(f"jars {name}", False, str(error))
            continue
        if problems := check_folder(folder, locked[name]):
            yield Finding(f"jars {name}", False, f"{problems[0]}: delete {folder} and run `python -m dexorder.setup`")
        else:
            yield Finding(f"jars {name}", True, f"{len(locked[name])} with the pinned checksums in {folder}")


def _settings(_: SuiteOptions) -> Iterator[Finding]:
    count = sum(name.startswith("DEXORDER_") for name in os.environ)
    wrong = [line for part in serve.PARTS for line in serve.wrong_settings(part)]
    try:
        open_sync_channel(relay_address(None)).close()  # reads the certificates
    except BadSettings as error:
        wrong += [line.strip() for line in str(error).splitlines()[1:]]
    except (ValueError, OSError) as error:
        wrong.append(f"DEXORDER_CHANNEL_TLS_*: {error}")
    if wrong:
        yield Finding("settings", False, f"{'; '.join(dict.fromkeys(wrong))}: see docs/settings.md")
    else:
        yield Finding("settings", True, f"{count} DEXORDER_ variables are set, all are valid")


def _limits(_: SuiteOptions) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    detail = f"limit of open files: {'none' if soft == resource.RLIM_INFINITY else soft}"
    if not enough:
        detail += f"; Kafka and Spark need {MIN_OPEN_FILES}: run `ulimit -n {MIN_OPEN_FILES}` (hard limit: {hard})"
    yield Finding("files", enough, detail)


def _state(_: SuiteOptions) -> Iterator[Finding]:
    folder = state_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        yield Finding("state", True, f"unfinished runs are recorded in {folder}")
    else:
        advice = "so `history --resume` is not possible: set XDG_STATE_HOME to another folder"
        yield Finding("state", False, f"{existing} is not writable, {advice}")


def _ports(options: SuiteOptions) -> Iterator[Finding]:
    for directory in dict.fromkeys((options.directory, registered(options.ports.relay))):
        if directory is not None and (suite := running_suite(directory)) is not None:
            yield Finding("ports", True, f"in use by the suite that runs in {directory} (process {suite.pid})")
            return
    if taken := ports_in_use(options):
        listed = ", ".join(f"{port} ({part})" for part, _, port in taken)
        advice = "stop the processes that use them, or choose other ports: `up --base-port N`"
        yield Finding("ports", False, f"in use: {listed}; {advice}")
    else:
        yield Finding("ports", True, f"all are free (relay: {options.ports.relay})")


def _disk(options: SuiteOptions) -> Iterator[Finding]:
    folder = next(path for path in (options.directory, *options.directory.parents) if path.exists())
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GiB free at {folder}"
    if free < MIN_FREE_GIB:
        detail += f"; the suite needs {MIN_FREE_GIB:g}: free some space or choose another folder with --dir"
    yield Finding("disk", free >= MIN_FREE_GIB, detail)


def _sqlite(_: SuiteOptions) -> Iterator[Finding]:
    bug = (
        "; because of its WAL-reset bug (mended in 3.51.3) the connections of relay.db and events.db take turns, and a "
        "local catalog.db has a rollback journal"
    )
    yield Finding("SQLite", True, f"{sqlite3.sqlite_version}{'' if RESET_IS_SAFE else bug}")


def _packages(_: SuiteOptions) -> Iterator[Finding]:
    missing, found = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding(
            "packages",
            False,
            f"{', '.join(missing)} are not installed: install dexorder[suite], or run `make setup` in a checkout",
        )
    else:
        yield Finding("packages", True, ", ".join(found))
    with suppress(SetupError):  # reported by _jars
        if iceberg := [path.stem for path in jars.jar_paths("spark") if "iceberg-spark-runtime" in path.name]:
            yield Finding("iceberg", True, iceberg[0])
