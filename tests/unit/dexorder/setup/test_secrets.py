"""Secrets of a suite on one host: who can connect to whom with them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from dexorder.setup import secrets
from dexorder.setup.__main__ import main
from dexorder_common.messaging.curve import read_folder, read_key_pair, read_public_key
from dexorder_common.rpc.identity import Role, read_callers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("secrets")
    assert secrets.make(made).until is not None
    return made


def context(side: ssl._SSLMethod, folder: Path) -> ssl.SSLContext:
    found = ssl.SSLContext(side)
    found.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    found.load_verify_locations(folder / "ca.crt")
    found.verify_mode = ssl.CERT_REQUIRED
    return found


def caller(client: Path, server: Path, host: str) -> str:
    """Return the name that a server sees after a handshake; SSLError if one side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    here = context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(to_client, to_server, server_hostname=host)
    there = context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(to_server, to_client, server_side=True)
    for side in (here, there, here, there):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    certificate: Any = there.getpeercert()
    ((_, name),) = certificate["subject"][0]
    return str(name)


@pytest.mark.parametrize(("client", "server"), [("relay", "events"), ("spark", "udsource"), ("desk", "relay")])
def test_a_part_is_reached_by_its_name_and_knows_its_caller(folder: Path, client: str, server: str) -> None:
    assert caller(folder / client, folder / server, server) == client
    assert caller(folder / client, folder / server, "localhost") == client
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        caller(folder / client, folder / server, "spark" if server != "spark" else "relay")


def test_certificates_of_another_folder_are_of_strangers(folder: Path, tmp_path: Path) -> None:
    secrets.make(tmp_path)
    with pytest.raises(ssl.SSLError):
        caller(tmp_path / "relay", folder / "events", "events")


def test_each_caller_has_its_role_and_each_server_knows_all(folder: Path) -> None:
    for owner in secrets.ROLES.keys() - set(secrets.CLIENTS):
        callers = read_callers(folder / owner / "callers.yaml")
        roles = {name: found.role for name in secrets.ROLES if (found := callers.by_name(name))}
        assert roles == {
            "relay": Role.CLIENT,
            "gateway": Role.PIPELINE,
            "ingestor": Role.INGESTOR,
            "spark": Role.PIPELINE,
            "desk": Role.CLIENT,
            "operator": Role.ADMIN,
        }


def test_curve_keys_belong_together_and_no_other_may_connect(folder: Path) -> None:
    for owner, (name, to) in secrets.CURVE.items():
        public = read_key_pair(folder / owner / f"{owner}.key_secret").public
        assert read_public_key(folder / to / name) == public
    assert read_folder(folder / "relay" / "clients") == {read_key_pair(folder / "ingestor/ingestor.key_secret").public}
    containers = yaml.safe_load((folder / "events" / "containers.yaml").read_text())["containers"]
    assert [each.get("curve") for each in containers] == [None, read_public_key(folder / "desk/desk.key").decode()]


def test_only_their_owner_may_read_secrets_and_the_authority_s_key_is_nowhere(folder: Path) -> None:
    private, curve = (
        [file for file in folder.rglob("*") if file.is_file() and text in file.read_bytes()]
        for text in (b"PRIVATE KEY", b"secret-key")
    )
    assert sorted(private) == sorted(folder / owner / "tls.key" for owner in secrets.ROLES)
    assert len(curve) == len(secrets.CURVE) + 1
    assert all(file.stat().st_mode & 0o077 == 0 for file in (*private, *curve))


def test_a_second_call_changes_nothing_and_renew_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def contents() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}

    assert main(["secrets", str(tmp_path)]) == 0
    first = contents()
    assert main(["secrets", str(tmp_path)]) == 0 and contents() == first
    assert "unchanged" in capsys.readouterr().out
    assert main(["secrets", str(tmp_path), "--renew"]) == 0
    assert contents().keys() == first.keys()
    same = {file.name for file, content in contents().items() if content == first[file]}
    assert same == {"callers.yaml"}


def test_a_call_that_was_interrupted_is_made_again_as_a_whole(tmp_path: Path) -> None:
    secrets.make(tmp_path)
    (tmp_path / "spark" / "ca.crt").unlink()
    assert secrets.make(tmp_path).until is not None
    assert caller(tmp_path / "spark", tmp_path / "udsource", "udsource") == "spark"


def test_the_end_of_the_certificates_is_told(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert secrets.make(tmp_path, now=now).until == now + timedelta(days=secrets.DAYS)


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "relay").write_text("")
    assert main(["secrets", str(tmp_path)]) == 1
    assert f"{tmp_path / 'relay'}" in capsys.readouterr().err
