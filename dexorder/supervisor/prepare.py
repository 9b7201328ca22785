"""Checks and files before the first part starts: folder lock, free ports, Java and jars, exchanges file, keys."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from dexorder.errors import SuiteFailed
from dexorder.setup.class_archive import archive_path, ensure_once, kafka_program, spark_program
from dexorder.setup.config import SetupError
from dexorder.setup.jars import fetch, jar_folder
from dexorder.setup.java import Java, ensure_java, java_env
from dexorder.supervisor.plan import EXCHANGES_FILE, HOST, NEEDS_JAVA, OWNED, SuiteOptions
from dexorder_common.config import BadSettings, read_settings
from dexorder_common.exchanges import exchanges_file, load_exchanges
from dexorder_common.storage.process_lock import Locked, take_lock

if TYPE_CHECKING:
    from dexorder_common.lake.catalog import CatalogSettings

SIM_VENUES = "SIM"
"""Prefix of the simulated exchange's venues, one for each of its dialects."""

_ARCHIVERS = {"kafka": "dexorder.supervisor.kafka_archive", "spark": "dexorder_spark.runtime.class_archive"}
_LOCK = "suite.lock"
_NOT_IN_A_FOLDER = frozenset("#?%")


@contextmanager
def suite_lock(directory: Path) -> Iterator[None]:
    """Create the folder if needed and lock it for this process. A folder that is still empty at the end is removed.

    Raises:
        SuiteFailed: Another process holds the lock, or Iceberg can't keep tables in a folder of this name.
    """
    if refused := sorted(set(str(directory)) & _NOT_IN_A_FOLDER):
        raise SuiteFailed(
            f"{directory}: tables can't be in a folder whose path has {' or '.join(map(repr, refused))}, which ends or "
            "escapes a part of a URI: choose another --dir"
        )
    is_new = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = take_lock(directory / _LOCK)
    except OSError as error:
        raise SuiteFailed(f"can't use the folder {directory}: {error.strerror}") from None
    except Locked as locked:
        raise SuiteFailed(
            f"{directory} is in use by another `dexorder up`, process {locked.holder}: stop it or choose another --dir"
        ) from None
    try:
        yield
    finally:
        if is_new and [each.name for each in directory.iterdir()] == [_LOCK]:
            (directory / _LOCK).unlink()
            directory.rmdir()
        os.close(handle)


def empty_scratch(folder: Path) -> None:
    """Replace the folder by an empty one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def external_catalog() -> CatalogSettings | None:
    """Return the catalog that the environment names, or None; SuiteFailed if one of its variables is invalid."""
    if "DEXORDER_CATALOG_URI" not in os.environ:
        return None
    from dexorder_common.lake.catalog import CatalogSettings  # deferred: pyiceberg is slow to import

    try:
        return read_settings(CatalogSettings)
    except BadSettings as error:
        raise SuiteFailed(str(error)) from None


def java_and_jars(options: SuiteOptions, note: Callable[[str], None]) -> dict[str, str]:
    """Return the environment of the parts that start Java, after downloads of the missing jars and of a Java runtime.

    The first time, the classes of these parts are archived as well: see `dexorder.setup.class_archive`.

    Raises:
        SuiteFailed: Java or a jar is missing and can't be downloaded.
    """
    wanted = [part for part in options.parts if part in NEEDS_JAVA]
    if not wanted:
        return {}
    try:
        for part in wanted:
            for name in options.catalog.jar_sets if part == "spark" and options.catalog else (part,):
                _present(name, note)
        java = ensure_java(note)
        archive_classes(wanted, java, note)
        return java_env(java)
    except SetupError as error:
        raise SuiteFailed(str(error)) from None


def archive_classes(parts: Sequence[str], java: Java, note: Callable[[str], None]) -> None:
    """Write the missing class archives of these parts, side by side."""
    with ThreadPoolExecutor() as threads:
        programs = [kafka_program(jar_folder(part)) if part == "kafka" else spark_program() for part in parts]
        archives = [archive_path(program, java) for program in programs]
        list(threads.map(ensure_once, archives, [_ARCHIVERS[part] for part in parts], [note] * len(archives)))


def _present(name: str, note: Callable[[str], None]) -> None:
    try:
        jar_folder(name)
    except SetupError:
        fetch(name, partial(ensure_java, note), note)


def ports_in_use(options: SuiteOptions) -> list[tuple[str, str, int]]:
    """Return part, port name and number of each port that is in use."""
    used = []
    for part in options.parts:
        for name in OWNED[part]:
            port = getattr(options.ports, name)
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
                try:
                    probe.bind((HOST, port))
                except OSError:
                    used.append((part, name, port))
    return used


async def ports_free(options: SuiteOptions, *, timeout_s: float = 3.0) -> None:
    """Wait until every port is free, a moment after a suite was killed; SuiteFailed names one that stays in use."""
    deadline = time.monotonic() + timeout_s
    while used := ports_in_use(options):
        if time.monotonic() > deadline:
            part, name, port = used[0]
            owner = part if name == part else f"{part}, {name.removeprefix(part + '_')}"
            more = f" (and {len(used) - 1} more)" if len(used) > 1 else ""
            raise SuiteFailed(
                f"port {port} ({owner}) is in use{more}: stop its program or choose other ports with --base-port"
            )
        await asyncio.sleep(0.1)


def write_exchanges(source: Path | None, options: SuiteOptions) -> None:
    """Write DIR/exchanges.yaml, with the address of the simulated exchange, from a given file or a shipped one.

    Raises:
        SuiteFailed: The user's file is missing or invalid; the message names the place in it.
    """
    try:
        file = exchanges_file(source or Path("sim"))
        load_exchanges(file)
    except (OSError, ValueError) as error:
        raise SuiteFailed(f"exchanges file: {error}") from None
    content, address = yaml.safe_load(file.read_text()), options.address("sim")
    venues = content["exchanges"]
    for name in [name for name in venues if name.startswith(SIM_VENUES)]:
        venues[name] = {**venues[name], "rest_url": f"http://{address}", "ws_url": f"ws://{address}"}
        if venues[name].get("archive"):
            venues[name]["archive"] = f"http://{address}"
    (options.directory / EXCHANGES_FILE).write_text(yaml.safe_dump(content, sort_keys=False))


def make_jwt_keys(options: SuiteOptions) -> None:
    """Create a key pair for users' tokens if it is missing.

    ``dexorder events token USER --key DIR/jwt-keys/suite.key`` signs a token.
    """
    from dexorder_gateway.events.sessions.user_tokens import (
        make_keys,  # deferred: cryptography is slow to import
    )

    if "gateway" in options.parts and not options.jwt_keys.exists():
        make_keys(options.jwt_keys, "suite")


def recorded_entries(entries: Iterable[str]) -> tuple[str, ...]:
    """Return ``FILE=SYMBOL`` entries with absolute files; ValueError if one has another form or its file is missing."""
    found = []
    for entry in entries:
        file, equals, symbol = entry.rpartition("=")
        if not equals or not file or not symbol:
            raise ValueError(f"{entry!r} is not FILE=SYMBOL; use for example candles.parquet=BTC/USDT")
        path = Path(file).expanduser().absolute()
        if not path.is_file():
            raise ValueError(f"the file {file} does not exist")
        found.append(f"{path}={symbol}")
    return tuple(found)
