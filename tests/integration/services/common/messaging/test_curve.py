"""CURVE key files: creation, errors at start, changes while a server runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import zmq.auth

from dexorder_common.config import load_settings
from dexorder_common.messaging.curve import (
    AllowedKeys,
    main,
    make_keys,
    read_folder,
    read_key_pair,
    read_public_key,
)
from dexorder_ingestor.config import IngestorSettings
from dexorder_relay.config import RelaySettings


def test_created_keys_are_a_pair_with_a_private_secret(tmp_path: Path) -> None:
    public, secret = make_keys(tmp_path / "new", "relay")
    assert (public.name, secret.name) == ("relay.key", "relay.key_secret")
    assert (public.stat().st_mode & 0o777, secret.stat().st_mode & 0o777) == (0o644, 0o600)
    pair = read_key_pair(secret)
    assert pair.public == read_public_key(public) and zmq.curve_public(pair.secret) == pair.public
    assert pair.secret not in public.read_bytes()
    assert pair.secret.decode() not in repr(pair)
    assert zmq.auth.load_certificate(secret) == (pair.public, pair.secret)


def test_command_creates_keys_and_never_overwrites_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dexorder_common.messaging.curve", "keys", str(tmp_path), "ingestor-1"]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    secret = (tmp_path / "ingestor-1.key_secret").read_bytes()
    assert read_key_pair(tmp_path / "ingestor-1.key_secret").secret.decode() not in made.stdout + made.stderr
    with pytest.raises(SystemExit, match=r"ingestor-1\.key exists already"):
        main(["keys", str(tmp_path), "ingestor-1"])
    assert (tmp_path / "ingestor-1.key_secret").read_bytes() == secret


def half_a_pair(folder: Path) -> Path:
    _, one = make_keys(folder, "one")
    two = make_keys(folder, "two")[1]
    text = one.read_text().replace(read_key_pair(one).public.decode(), read_key_pair(two).public.decode())
    one.write_text(text)
    return one


def open_to(mode: int, folder: Path) -> Path:
    secret = make_keys(folder, "mine")[1]
    secret.chmod(mode)
    return secret


def broken(folder: Path, text: str) -> Path:
    path = folder / "broken.key_secret"
    path.touch(0o600)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder / "absent", "can't be read: no such file"),
        (lambda folder: folder, "can't be read: Is a directory"),
        (lambda folder: open_to(0o660, folder), "that others may read; chmod 600"),
        (lambda folder: open_to(0o604, folder), "that others may read; chmod 600"),
        (lambda folder: make_keys(folder, "mine")[0], "that others may read"),
        (lambda folder: broken(folder, ""), "is not a key file"),
        (lambda folder: broken(folder, 'public-key = "short"'), "is not a key file"),
        (lambda folder: broken(folder, f'public-key = "{"~" * 40}"'), "is not a key file"),
        (lambda folder: broken(folder, f'public-key = "{"a" * 40}"'), "is not a file with a secret key"),
        (half_a_pair, "does not belong to its public key"),
    ],
)
def test_unusable_secret_is_an_error_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, said: str
) -> None:
    path = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(ValueError, match=said):
        read_key_pair(path)
    for settings, other in (
        (RelaySettings, "RELAY_BROKER_CURVE_CLIENTS"),
        (IngestorSettings, "INGESTOR_BROKER_CURVE_SERVER"),
    ):
        service = other.split("_")[0]
        allowed = make_keys(tmp_path / service, "other")[0]
        monkeypatch.setenv(f"DEXORDER_{service}_BROKER_CURVE_KEY", str(path))
        monkeypatch.setenv(f"DEXORDER_{other}", str(allowed.parent if service == "RELAY" else allowed))
        with pytest.raises(SystemExit, match=f"DEXORDER_{service}_BROKER_CURVE_KEY: .*{said}"):
            load_settings(settings)


def test_only_roots_own_secret_may_be_readable_by_the_group(tmp_path: Path) -> None:
    """Kubernetes mounts a Secret so for a pod with a group of its own (fsGroup)."""
    path = open_to(0o640, tmp_path)
    if os.geteuid():
        with pytest.raises(ValueError, match="that others may read"):
            read_key_pair(path)
        return
    read_key_pair(path)
    os.chown(path, 10001, 10001)
    with pytest.raises(ValueError, match="that others may read"):
        read_key_pair(path)


def test_unreadable_secret_is_an_error_that_names_it(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    path = open_to(0o000, tmp_path)
    with pytest.raises(ValueError, match="can't be read: Permission denied"):
        read_key_pair(path)


def test_incomplete_settings_are_an_error_at_start(tmp_path: Path) -> None:
    public, secret = make_keys(tmp_path, "mine")
    for half in ({"broker_curve_key": secret}, {"broker_curve_clients": tmp_path}):
        with pytest.raises(SystemExit, match="broker_curve_key and broker_curve_clients must be set together"):
            load_settings(RelaySettings, **half)
    for half in ({"broker_curve_key": secret}, {"broker_curve_server": public}):
        with pytest.raises(SystemExit, match="broker_curve_key and broker_curve_server go together"):
            load_settings(IngestorSettings, **half)
    with pytest.raises(SystemExit, match=r"BROKER_CURVE_CLIENTS: .*is not a readable folder"):
        load_settings(RelaySettings, broker_curve_key=secret, broker_curve_clients=tmp_path / "absent")


def test_with_curve_the_broker_may_listen_beyond_loopback(tmp_path: Path) -> None:
    public, secret = make_keys(tmp_path, "mine")
    with pytest.raises(SystemExit, match=r"tcp://0\.0\.0\.0:5567 is reachable from outside without TLS"):
        load_settings(RelaySettings, broker_listen="tcp://0.0.0.0:5567")
    made = load_settings(
        RelaySettings, broker_listen="tcp://0.0.0.0:5567", broker_curve_key=secret, broker_curve_clients=public.parent
    )
    assert made.exposed_addresses() == [made.listen]


def test_allowed_keys_follow_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    public, _ = make_keys(folder, "one")
    keys = [read_public_key(public), read_public_key(make_keys(tmp_path, "two")[0])]
    allowed = AllowedKeys(folder)

    def admitted() -> list[bool]:
        return [allowed.callback("dexorder", key) for key in keys]

    assert read_folder(folder) == {keys[0]} and admitted() == [True, False]
    (tmp_path / "two.key").rename(folder / "two.key")
    assert admitted() == [True, True]
    (folder / "two.key").write_text("half writ")
    assert admitted() == [False, False]  # no key is allowed while the folder can't be read
    (folder / "two.key").unlink()
    assert admitted() == [True, False]
    public.unlink()
    assert admitted() == [False, False]
    (folder / "one.key_secret").unlink()
    folder.rmdir()
    assert admitted() == [False, False]
