"""CURVE, ZeroMQ's encryption and authentication by key pairs, with key files in the format of ``zmq.auth``.

A server has a key pair and a folder of the public keys that may connect; a client has a key pair and the server's
public key. ``python -m dexorder_common.messaging.curve keys DIR NAME`` creates a pair: ``NAME.key_secret``,
which stays where it is used, and ``NAME.key``, for the other side.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import structlog
import zmq
import zmq.asyncio
import zmq.auth
import zmq.auth.asyncio
import zmq.auth.thread
from pydantic import AfterValidator
from zmq.utils.z85 import Z85CHARS

log = structlog.get_logger(__name__)
_DOMAIN = "dexorder"
_GROUP_AND_OTHERS, _WRITES_AND_OTHERS = 0o077, 0o027
_KEY_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Public and secret key, each as Z85 text of 40 characters."""

    public: bytes
    secret: bytes = field(repr=False)


def read_key_pair(path: Path) -> KeyPair:
    """Return the key pair of a ``.key_secret`` file.

    Raises:
        ValueError: It can't be read, others may read it, or it holds no key pair. The message never shows a key.
    """
    public, secret = _read(path)
    found = path.stat()
    # Root's own file may be readable by the group, as in PostgreSQL: Kubernetes mounts Secrets so for a pod's group.
    if found.st_mode & (_GROUP_AND_OTHERS if found.st_uid else _WRITES_AND_OTHERS):
        raise ValueError(f"{path} holds a secret key that others may read; chmod 600 it")
    if secret is None:
        raise ValueError(f"{path} is not a file with a secret key; name the .key_secret file")
    try:
        fits = zmq.curve_public(secret) == public
    except (ValueError, zmq.ZMQError):
        fits = False
    if not fits:
        raise ValueError(f"{path} holds a secret key that does not belong to its public key")
    return KeyPair(public, secret)


def read_public_key(path: Path) -> bytes:
    """Return the public key of a ``.key`` file as Z85 text.

    Raises:
        ValueError: It can't be read, or holds no key.
    """
    return _read(path)[0]


def read_folder(folder: Path) -> frozenset[bytes]:
    """Return the public keys of all ``*.key`` files of a folder.

    Raises:
        ValueError: The folder or one of the files can't be read, or such a file holds no key.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a readable folder")
    return frozenset(read_public_key(path) for path in sorted(folder.glob("*.key")))


def _read(path: Path) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror or 'no such file'}") from None
    except ValueError:
        public, secret = b"", None
    if len(public) != _KEY_CHARACTERS or not set(public) <= set(Z85CHARS):
        raise ValueError(f"{path} is not a key file in the format of zmq.auth")
    return public, secret


def _readable_by(read: Callable[[Path], object]) -> AfterValidator:
    def check(path: Path) -> Path:
        read(path)
        return path

    return AfterValidator(check)


# Types for settings: an invalid file is an error at start that names its variable.
SecretKeyFile = Annotated[Path, _readable_by(read_key_pair)]
PublicKeyFile = Annotated[Path, _readable_by(read_public_key)]
KeyFolder = Annotated[Path, _readable_by(read_folder)]


class KeyCheck(Protocol):
    """Decision which keys may connect; for any thread."""

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this public key (Z85 text) may connect; called at each handshake."""


class AllowedKeys:
    """Public keys of a folder, read again after a change; no key is allowed while it can't be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: object = None
        self._keys: frozenset[bytes] = frozenset()

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client with this public key may connect; ``zmq.auth`` calls it at each handshake."""
        try:
            files = [(path.name, path.stat()) for path in sorted(self._folder.glob("*.key"))]
            seen = [(name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in files]
            if seen != self._seen:
                self._keys = read_folder(self._folder)
                self._seen = seen
        except (OSError, ValueError) as error:
            log.error("the allowed CURVE keys can't be read: new connections are refused", error=str(error))
            self._keys = frozenset()
            self._seen = None
        return key in self._keys


@contextmanager
def curve_server(context: zmq.asyncio.Context, socket: zmq.asyncio.Socket, key: Path, clients: Path) -> Iterator[None]:
    """Accept only clients with an allowed key on ``socket``, which is not bound yet; needs a running event loop.

    Raises:
        ValueError: As ``read_key_pair``.
    """
    with _authenticating(zmq.auth.asyncio.AsyncioAuthenticator(context), AllowedKeys(clients)):
        curve_socket(socket, key)
        yield


def curve_authentication(context: zmq.Context[zmq.Socket[bytes]], allowed: KeyCheck) -> AbstractContextManager[None]:
    """Authenticate clients of a context's ``curve_socket`` sockets in its own thread."""
    return _authenticating(zmq.auth.thread.ThreadAuthenticator(context), allowed)


@contextmanager
def _authenticating(
    authenticator: zmq.auth.asyncio.AsyncioAuthenticator | zmq.auth.thread.ThreadAuthenticator, allowed: KeyCheck
) -> Iterator[None]:
    authenticator.start()
    try:
        authenticator.configure_curve_callback(_DOMAIN, allowed)  # '*' does not match this domain
        yield
    finally:
        authenticator.stop()


def curve_socket(socket: zmq.Socket[Any], key: Path) -> None:
    """Accept only clients with an allowed key on ``socket``, which is neither bound nor connected yet.

    The metadata ``User-Id`` of a message is the sender's key; the sender can choose only its routing id.

    Raises:
        ValueError: As ``read_key_pair``.
    """
    secret = read_key_pair(key).secret
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN.encode())
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # refuse connections without an authenticator


def curve_client(socket: zmq.Socket[Any], key: Path, server: Path) -> None:
    """Encrypt ``socket``, which is not connected yet, and connect only to the owner of ``server``'s key.

    Raises:
        ValueError: As ``read_key_pair``.
    """
    pair = read_key_pair(key)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
    socket.setsockopt(zmq.CURVE_SERVERKEY, read_public_key(server))


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Create a key pair; return the paths of ``name.key`` (mode 644) and ``name.key_secret`` (mode 600).

    Raises:
        FileExistsError: One of them exists; a key is never overwritten.
        OSError: The folder can't be written.
    """
    public, secret = folder / f"{name}.key", folder / f"{name}.key_secret"
    for path in (public, secret):
        if path.exists():
            raise FileExistsError(f"{path} exists already")
    mask = os.umask(_GROUP_AND_OTHERS)  # others must not be able to read the secret even for a moment
    try:
        folder.mkdir(parents=True, exist_ok=True)
        zmq.auth.create_certificates(folder, name)
    finally:
        os.umask(mask)
    public.chmod(0o644)
    return public, secret


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``keys DIR NAME``."""
    parser = argparse.ArgumentParser(prog="python -m dexorder_common.messaging.curve", description="Keys for CURVE.")
    keys = parser.add_subparsers(required=True).add_parser("keys", help="create a key pair")
    keys.add_argument("folder", type=Path, metavar="DIR")
    keys.add_argument("name", metavar="NAME", help="name of its user, for example relay or ingestor-1")
    options = parser.parse_args(arguments)
    try:
        public, secret = make_keys(options.folder, options.name)
    except OSError as error:
        raise SystemExit(str(error)) from None
    print(f"{secret}\n  stays where {options.name} runs; no other user may read it\n{public}\n  is for the other side")


if __name__ == "__main__":
    main()
