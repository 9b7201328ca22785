"""Users' JWTs: who somebody is, said by whoever holds a private key whose public half lies in our folder.

Only EdDSA (Ed25519) and RS256 are taken, each only with a key of its kind, so that neither ``none`` nor a public key
used as a shared secret gets anywhere. `kid` names the key's file, `aud` must be ours, `sub` is the user; the life from
`iat` to `exp` is short, since nobody can take a token back.

For development, ``python -m services.gateway.events.sessions.user_tokens key DIR NAME`` makes a pair of keys:
``NAME.pem``, which the gateway reads, and ``NAME.key``, which signs. ``... token --key DIR/NAME.key USER`` signs
a token and prints it.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from jwt.exceptions import InvalidSubjectError

from services.common.clock import Clock, SystemClock
from services.common.config import BadSettings
from services.common.model.errors import Unauthenticated
from services.gateway.events.config import EventsSettings

log = structlog.get_logger(__name__)
PublicKey = Ed25519PublicKey | RSAPublicKey
LEEWAY_SECONDS = 5.0
"""How far the clock of whoever signs may be ahead of ours. Nothing is added to `exp`."""
LARGEST_TOKEN = 8_192
LONGEST_USER_ID = 256
_SMALLEST_RSA_BITS = 2_048
_CLAIMS = ["exp", "iat", "aud", "sub"]
# Times are checked below: by our clock, and with a leeway that `exp` does not get.
_OPTIONS: Any = {"require": _CLAIMS, "verify_exp": False, "verify_iat": False, "verify_nbf": False}


@dataclass(frozen=True, slots=True)
class User:
    """Whom a token speaks for, and until when (wall clock)."""

    user_id: str
    expires_ns: int


class TokenVerifier:
    """Checks tokens. The folder is looked at for each, so that a key counts, or no longer counts, at once."""

    def __init__(self, folder: Path | None, audience: str, most_seconds: float, clock: Clock | None = None) -> None:
        """Read the keys.

        Args:
            folder: Of the keys; None: there are no sessions, and every token is refused.

        Raises:
            BadSettings: There is no such folder.
        """
        if folder and not folder.is_dir():
            raise BadSettings(f"DEXORDER_EVENTS_JWT_KEYS: {folder} is no folder that can be read")
        self._folder = folder
        self._audience = audience
        self._most_seconds = most_seconds
        self._clock = clock or SystemClock()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._keys: dict[str, PublicKey] = {}
        self._look()

    @staticmethod
    def of(settings: EventsSettings) -> TokenVerifier:
        """As set.

        Raises:
            BadSettings: There is no such folder.
        """
        return TokenVerifier(settings.jwt_keys, settings.jwt_audience, settings.jwt_max_seconds)

    def user(self, token: str) -> User:
        """Whom a token speaks for.

        Raises:
            Unauthenticated: It is not good; says why, and shows nothing of it.
        """
        if not self._folder:
            raise Unauthenticated("this gateway serves no sessions: DEXORDER_EVENTS_JWT_KEYS is not set")
        if len(token) > LARGEST_TOKEN:
            raise Unauthenticated(f"the token has more than {LARGEST_TOKEN} characters")
        self._look()
        try:
            key = self._key(jwt.get_unverified_header(token).get("kid"))
            claims = jwt.decode(token, key, [_algorithm(key)], _OPTIONS, audience=self._audience)
        except jwt.PyJWTError as error:
            raise Unauthenticated(_reason(error)) from None
        user_id = claims["sub"]
        if not 0 < len(user_id.encode(errors="replace")) <= LONGEST_USER_ID or "\0" in user_id:
            raise Unauthenticated(f"the token's sub is not of 1 to {LONGEST_USER_ID} bytes without NUL")
        return User(user_id, self._expiry_ns(claims))

    def _expiry_ns(self, claims: Mapping[str, Any]) -> int:
        now = self._clock.wall_ns() / 1e9
        expires, issued, not_before = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires <= now:
            raise Unauthenticated("the token has expired")
        if max(issued, not_before) > now + LEEWAY_SECONDS:
            raise Unauthenticated("the token is not valid yet")
        if expires - issued > self._most_seconds:
            raise Unauthenticated(f"the token lives longer than {self._most_seconds:g} s from iat to exp")
        return int(expires * 1e9)

    def _key(self, kid: Any) -> PublicKey:
        key = self._keys.get(kid) if isinstance(kid, str) else None
        if key is None:
            raise Unauthenticated("the token's kid names no key that we know")
        return key

    def _look(self) -> None:
        """Read the keys again if a file came, went or changed. One that can't be read is no key, and logged once."""
        assert self._folder or not self._keys
        stamps = _stamps(self._folder) if self._folder else {}
        if stamps == self._stamps:
            return
        self._stamps = stamps
        self._keys = {}
        for name in stamps:
            try:
                self._keys[name.removesuffix(".pem")] = read_public_key(Path(self._folder or "", name))
            except (OSError, ValueError) as error:
                log.error("no key for users' tokens", file=name, problem=str(error))
        log.info("keys for users' tokens read", folder=str(self._folder), keys=len(self._keys))


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(".pem"):
                stat = entry.stat()
                found[entry.name] = stat.st_mtime_ns, stat.st_size, stat.st_ino
    except OSError:  # it changes as we look, or is gone: what is not there is no key
        pass
    return found


def read_public_key(path: Path) -> PublicKey:
    """An Ed25519 or RSA public key.

    Raises:
        OSError: It can't be read.
        ValueError: It is none, or too short.
    """
    try:
        key = load_pem_public_key(path.read_bytes())
    except ValueError:
        raise ValueError("no public key in PEM") from None
    if isinstance(key, RSAPublicKey) and key.key_size < _SMALLEST_RSA_BITS:
        raise ValueError(f"an RSA key of {key.key_size} bits; {_SMALLEST_RSA_BITS} are the least")
    if not isinstance(key, PublicKey):
        raise ValueError("neither an Ed25519 nor an RSA key")
    return key


def _algorithm(key: PublicKey | Ed25519PrivateKey | RSAPrivateKey) -> str:
    return "RS256" if isinstance(key, RSAPublicKey | RSAPrivateKey) else "EdDSA"


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    """A time, 0 for one that is not there."""
    value = claims.get(name, 0)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Unauthenticated(f"the token's {name} is no time")
    return float(value)


def _reason(error: jwt.PyJWTError) -> str:
    """In our words: PyJWT's own may show a part of the token."""
    reasons = {
        jwt.InvalidSignatureError: "the token's signature is not its key's",
        jwt.InvalidAlgorithmError: "the token's alg is not its key's: EdDSA for Ed25519, RS256 for RSA",
        jwt.InvalidAudienceError: "the token's aud is not ours",
        InvalidSubjectError: "the token's sub is no text",
    }
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token lacks one of {', '.join(_CLAIMS)}"
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), "the token is no JWT")


# ---- for development


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Make an Ed25519 pair; the paths of ``name.pem`` (mode 644) and ``name.key`` (mode 600).

    Raises:
        FileExistsError: One of them is there already; a key is never overwritten.
        OSError: The folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    public, secret = folder / f"{name}.pem", folder / f"{name}.key"
    for path in (public, secret):
        if path.exists():
            raise FileExistsError(f"{path} is there already")
    key = Ed25519PrivateKey.generate()
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    fresh = public.with_suffix(".new")  # the gateway must not read half a key
    fresh.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    fresh.replace(public)
    return public, secret


def sign(secret: Path, user_id: str, *, audience: str = "dexorder", seconds: int = 900) -> str:
    """A token for a user, from now on; its `kid` is the key file's name without its ending.

    Raises:
        OSError: The key can't be read.
        ValueError: It is none.
    """
    try:
        key = load_pem_private_key(secret.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey | RSAPrivateKey):
        raise ValueError(f"{secret} holds no Ed25519 or RSA private key")
    now = int(time.time())
    claims = {"sub": user_id, "aud": audience, "iat": now, "exp": now + seconds}
    return jwt.encode(claims, key, _algorithm(key), headers={"kid": secret.stem})


def main(arguments: list[str] | None = None) -> None:
    """The commands ``key`` and ``token``."""
    parser = argparse.ArgumentParser(
        prog="python -m services.gateway.events.sessions.user_tokens", description="Users' JWTs."
    )
    commands = parser.add_subparsers(required=True, dest="command")
    keys = commands.add_parser("key", help="make a pair of keys")
    keys.add_argument("folder", type=Path, metavar="DIR")
    keys.add_argument("name", metavar="NAME")
    token = commands.add_parser("token", help="sign a token and print it")
    token.add_argument("--key", type=Path, required=True, help="the private key's file")
    token.add_argument("--audience", default="dexorder")
    token.add_argument("--seconds", type=int, default=900, help="how long it is valid")
    token.add_argument("user_id", metavar="USER")
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "token":
            print(sign(asked.key, asked.user_id, audience=asked.audience, seconds=asked.seconds))
            return
        public, secret = make_keys(asked.folder, asked.name)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    print(f"{secret}\n  signs; nobody else may read it\n{public}\n  is for DEXORDER_EVENTS_JWT_KEYS")


if __name__ == "__main__":
    main()
