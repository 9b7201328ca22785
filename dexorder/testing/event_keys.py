"""Keys of a gateway, its containers and its users, and the containers file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import yaml
import zmq
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dexorder_common.messaging.curve import make_keys, read_public_key

KID = "test"


class Keys:
    """Keys below one folder: of CURVE as ``pairs`` (public, secret), and the containers file's ``entries``, both by
    container.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pairs: dict[str, tuple[bytes, bytes]] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        self.jwt_folder = folder / "jwt"
        self.containers_file = folder / "containers.yaml"
        self.jwt_folder.mkdir(exist_ok=True)
        public_file, self.gateway_file = make_keys(folder, "gateway")
        self.gateway_key = read_public_key(public_file)
        self._jwt_key = Ed25519PrivateKey.generate()
        (self.jwt_folder / f"{KID}.pem").write_bytes(
            self._jwt_key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def container(self, name: str, users: list[str] | str = "*", **entry: Any) -> None:
        """Add a container with its own key pair; call `write` afterwards."""
        if name not in self.pairs:
            self.pairs[name] = zmq.curve_keypair()
        self.entries[name] = {"container": name, "curve": self.pairs[name][0].decode(), "users": users, **entry}

    def secret_file(self, name: str) -> Path:
        """Return a container's key pair as the container library reads it."""
        file = self.folder / f"{name}.key_secret"
        public, secret = (key.decode() for key in self.pairs[name])
        file.touch(0o600)
        file.write_text(f'curve\n    public-key = "{public}"\n    secret-key = "{secret}"\n')
        return file

    def local(self, **entry: Any) -> None:
        """Add the entry of all peers without CURVE; call `write` afterwards."""
        self.entries["local"] = {"container": "local", "users": "*", **entry}

    def write(self) -> None:
        """Replace the containers file atomically."""
        new = self.containers_file.with_suffix(".new")
        new.write_text(yaml.safe_dump({"containers": list(self.entries.values())}))
        new.rename(self.containers_file)

    def token(self, user: str, *, seconds: float = 600, claims: Mapping[str, Any] | None = None, kid: str = KID) -> str:
        """Return a user's JWT; ``claims`` replaces some of its claims."""
        now = time.time()
        given = {"sub": user, "aud": "dexorder", "iat": int(now), "exp": now + seconds, **(claims or {})}
        return jwt.encode(given, self._jwt_key, algorithm="EdDSA", headers={"kid": kid})
