"""``dexorder doctor``: can this machine run the suite? Each failing line says what to do."""

from __future__ import annotations

import importlib.metadata
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from pydantic_settings import BaseSettings

from dexorder.cli import output
from dexorder.connection import relay_address
from dexorder.setup import jars, java
from dexorder.setup.config import SetupError
from dexorder.setup.manifest import check_folder, parse_lock
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.prepare import taken_ports
from dexorder.supervisor.state import default_directory, process_alive, read_state
from services.common.config import BadSettings, read_settings, state_folder
from services.common.lake.catalog import CatalogSettings
from services.common.rpc.channel import ChannelSettings, open_sync_channel
from services.exchange_sim.config import SimSettings
from services.gateway.config import GatewaySettings
from services.ingestor.config import IngestorSettings
from services.relay.config import RelaySettings
from services.udsource.config import UdsourceSettings
from spark.config import SparkSettings

LEAST_FREE_GIB = 2.0
LEAST_OPEN_FILES = 1_024
_PACKAGES = ("pyspark", "pyiceberg", "pyarrow", "ccxt", "grpcio", "protobuf", "confluent-kafka", "pyzmq")
_SETTINGS: tuple[type[BaseSettings], ...] = (
    RelaySettings,
    IngestorSettings,
    GatewaySettings,
    UdsourceSettings,
    SparkSettings,
    SimSettings,
    CatalogSettings,
    ChannelSettings,
)


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is well, what was seen and what to do."""

    name: str
    ok: bool
    detail: str


def run(directory: Path | None, base_port: int | None, as_json: bool) -> int:
    """Print every finding; exit code 1 if any is not well."""
    try:
        ports = Ports() if base_port is None else Ports.from_base(base_port)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    options = SuiteOptions((directory or default_directory()).absolute(), ports)
    findings = [finding for look in _LOOKS for finding in look(options)]
    if as_json:
        output.print_json([asdict(finding) for finding in findings])
    else:
        console = output.stdout()
        for finding in findings:
            mark = "[green]ok  [/green]" if finding.ok else "[red]FAIL[/red]"
            console.print(f"{mark} {finding.name}: ", end="")
            console.print(finding.detail, markup=False)
    return 0 if all(finding.ok for finding in findings) else 1


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
        yield Finding("jars", False, f"jars.lock can't be read ({error}): run from a checkout of the project")
        return
    for name in dict.fromkeys((*jars.set_names(), *_catalog_jars())):
        try:
            folder = jars.jar_folder(name)
        except SetupError as error:
            yield Finding(f"jars {name}", False, f"{error}; or `make setup`")
            continue
        if problems := check_folder(folder, locked[name]):
            yield Finding(f"jars {name}", False, f"{problems[0]}: delete {folder} and run `make setup`")
        else:
            yield Finding(f"jars {name}", True, f"{len(locked[name])} with the pinned sums in {folder}")


def _catalog_jars() -> tuple[str, ...]:
    try:
        return read_settings(CatalogSettings).jar_sets
    except BadSettings:
        return ()  # said by _settings


def _settings(_: SuiteOptions) -> Iterator[Finding]:
    count = sum(name.startswith("DEXORDER_") for name in os.environ)
    wrong = []
    for settings in _SETTINGS:
        try:
            read_settings(settings)
        except BadSettings as error:
            wrong += [line.strip() for line in str(error).splitlines()[1:]]
    try:
        open_sync_channel(relay_address(None)).close()  # reads the certificates
    except BadSettings:
        pass  # already among those that are wrong
    except (ValueError, OSError) as error:
        wrong.append(f"DEXORDER_CHANNEL_TLS_*: {error}")
    if wrong:
        yield Finding("settings", False, f"{'; '.join(dict.fromkeys(wrong))}: see docs/settings.md")
    else:
        yield Finding("settings", True, f"{count} DEXORDER_ variables are set, none is wrong")


def _limits(_: SuiteOptions) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= LEAST_OPEN_FILES
    detail = f"{'any number' if soft == resource.RLIM_INFINITY else soft} may be open at once"
    if not enough:
        detail += f"; Kafka and Spark want {LEAST_OPEN_FILES}: `ulimit -n {LEAST_OPEN_FILES}` (most allowed: {hard})"
    yield Finding("files", enough, detail)


def _state(_: SuiteOptions) -> Iterator[Finding]:
    folder = state_folder()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if os.access(there, os.W_OK | os.X_OK):
        yield Finding("state", True, f"runs to go on with are kept in {folder}")
    else:
        yield Finding("state", False, f"{there} can't be written, so --resume knows no run: set XDG_STATE_HOME")


def _ports(options: SuiteOptions) -> Iterator[Finding]:
    suite = read_state(options.directory)
    if suite is not None and process_alive(suite.pid):
        yield Finding("ports", True, f"in use by the suite that runs in {options.directory} (process {suite.pid})")
        return
    if taken := taken_ports(options):
        listed = ", ".join(f"{port} ({part})" for part, _, port in taken)
        yield Finding("ports", False, f"taken: {listed}; stop what uses them or choose others: `up --base-port N`")
    else:
        yield Finding("ports", True, f"free, relay {options.ports.relay} to the rest")


def _disk(options: SuiteOptions) -> Iterator[Finding]:
    folder = next(path for path in (options.directory, *options.directory.parents) if path.exists())
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GiB free at {folder}"
    if free < LEAST_FREE_GIB:
        detail += f"; the suite wants {LEAST_FREE_GIB:g}: make room or choose another --dir"
    yield Finding("disk", free >= LEAST_FREE_GIB, detail)


def _packages(_: SuiteOptions) -> Iterator[Finding]:
    missing, found = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("packages", False, f"{', '.join(missing)} not installed: run `make setup`")
    else:
        yield Finding("packages", True, ", ".join(found))
    iceberg = [p.name for p in _spark_jars() if "iceberg-spark-runtime" in p.name]
    if iceberg:
        yield Finding("iceberg", True, iceberg[0].removesuffix(".jar"))


def _spark_jars() -> tuple[Path, ...]:
    try:
        return jars.jar_paths("spark")
    except SetupError:
        return ()


_LOOKS: tuple[Callable[[SuiteOptions], Iterator[Finding]], ...] = (
    _java,
    _jars,
    _settings,
    _ports,
    _disk,
    _limits,
    _state,
    _packages,
)
