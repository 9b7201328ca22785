"""Users' JWTs, signed with a private key; the public key is in the gateway's folder.

Only EdDSA (Ed25519) and RS256 are accepted, each only with a key of its type, which excludes ``none`` and a public key
used as a shared secret. `kid` names the key's file, `aud` must match, `sub` is the user. Tokens can't be revoked, so
the time from `iat` to `exp` must be short.

For development, ``python -m dexorder_gateway.events.sessions.user_tokens key DIR NAME`` makes a pair of keys:
``NAME.pem``, which the gateway reads, and ``NAME.key``, with which ``dexorder events token`` signs.
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

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.config import BadSettings
from dexorder_common.model.errors import Unauthenticated
from dexorder_gateway.events.config import EventsSettings

log = structlog.get_logger(__name__)
PublicKey = Ed25519PublicKey | RSAPublicKey
LEEWAY_SECONDS = 5.0
"""Tolerance for a signer's clock that is ahead of ours. It does not apply to `exp`."""
MAX_TOKEN_CHARACTERS = 8_192
MAX_USER_ID_BYTES = 256
_MIN_RSA_BITS = 2_048
_CLAIMS = ["exp", "iat", "aud", "sub"]
# Times are checked below, by the injected clock and without a leeway for `exp`.
_OPTIONS: Any = {"require": _CLAIMS, "verify_exp": False, "verify_iat": False, "verify_nbf": False}


@dataclass(frozen=True, slots=True)
class TokenUser:
    """User that a token authenticates, and its expiry (wall clock)."""

    user_id: str
    expires_ns: int


class TokenVerifier:
    """Verifier of tokens. It looks at the folder for each token, so a key is added or withdrawn at once.

    Without a folder every token is refused.

    Raises:
        BadSettings: The folder can't be read.
    """

    def __init__(self, settings: EventsSettings, clock: Clock | None = None) -> None:
        folder = settings.jwt_keys
        if folder and not folder.is_dir():
            raise BadSettings(f"DEXORDER_EVENTS_JWT_KEYS: {folder} is not a readable folder")
        self._folder = folder
        self._audience = settings.jwt_audience
        self._max_seconds = settings.jwt_max_seconds
        self._clock = clock or SystemClock()
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self._keys: dict[str, PublicKey] = {}
        if folder:
            self._refresh(folder)

    def user(self, token: str) -> TokenUser:
        """Return the user of a token.

        Raises:
            Unauthenticated: The token is not valid. The text does not show it.
        """
        if not self._folder:
            raise Unauthenticated("this gateway serves no sessions: DEXORDER_EVENTS_JWT_KEYS is not set")
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise Unauthenticated(f"the token has more than {MAX_TOKEN_CHARACTERS} characters")
        self._refresh(self._folder)
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            if not isinstance(kid, str) or (key := self._keys.get(kid)) is None:
                raise Unauthenticated("the token's kid is not the name of a known key")
            claims = jwt.decode(token, key, [_algorithm(key)], _OPTIONS, audience=self._audience)
        except jwt.PyJWTError as error:
            raise Unauthenticated(_reason(error)) from None
        user_id = claims["sub"]
        if not 0 < len(user_id.encode(errors="replace")) <= MAX_USER_ID_BYTES or not user_id.isprintable():
            raise Unauthenticated(f"the token's sub does not have 1 to {MAX_USER_ID_BYTES} bytes, all printable")
        return TokenUser(user_id, self._expiry_ns(claims))

    def _expiry_ns(self, claims: Mapping[str, Any]) -> int:
        now = self._clock.wall_ns() / 1e9
        expires, issued, not_before = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
        if expires <= now:
            raise Unauthenticated("the token has expired")
        if max(issued, not_before) > now + LEEWAY_SECONDS:
            raise Unauthenticated("the token is not valid yet")
        if expires - issued > self._max_seconds:
            raise Unauthenticated(f"the token is valid for more than {self._max_seconds:g} s from iat to exp")
        return int(expires * 1e9)

    def _refresh(self, folder: Path) -> None:
        """Read the keys again if a file was added, removed or changed. An unusable file is logged once and skipped."""
        stamps = _stamps(folder)
        if stamps == self._stamps:
            return
        self._stamps = stamps
        self._keys = {}
        for name in stamps:
            try:
                self._keys[name.removesuffix(".pem")] = read_public_key(folder / name)
            except (OSError, ValueError) as error:
                log.error("unusable key for users' tokens", file=name, problem=str(error))
        log.info("keys for users' tokens read", folder=str(folder), keys=len(self._keys))


def _stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    found = {}
    try:
        for entry in os.scandir(folder):
            if entry.name.endswith(".pem"):
                stat = entry.stat()
                found[entry.name] = stat.st_mtime_ns, stat.st_size, stat.st_ino
    except OSError:  # changed or removed since it was listed: such a file is not a key
        pass
    return found


def read_public_key(path: Path) -> PublicKey:
    """Read an Ed25519 or RSA public key; ValueError if the file is not such a key or the key is too short."""
    try:
        key = load_pem_public_key(path.read_bytes())
    except ValueError:
        raise ValueError("not a public key in PEM") from None
    if isinstance(key, RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
        raise ValueError(f"an RSA key of {key.key_size} bits; at least {_MIN_RSA_BITS} are required")
    if not isinstance(key, PublicKey):
        raise ValueError("neither an Ed25519 nor an RSA key")
    return key


def _algorithm(key: PublicKey | Ed25519PrivateKey | RSAPrivateKey) -> str:
    return "RS256" if isinstance(key, RSAPublicKey | RSAPrivateKey) else "EdDSA"


def _seconds(claims: Mapping[str, Any], name: str) -> float:
    """Return a time claim; 0 if it is missing."""
    value = claims.get(name, 0)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Unauthenticated(f"the token's {name} is not a time")
    return float(value)


def _reason(error: jwt.PyJWTError) -> str:
    """Return a reason in our own words: PyJWT's may show a part of the token."""
    reasons = {
        jwt.InvalidSignatureError: "the token's signature is not its key's",
        jwt.InvalidAlgorithmError: "the token's alg is not its key's: EdDSA for Ed25519, RS256 for RSA",
        jwt.InvalidAudienceError: "the token's aud is not the expected one",
        InvalidSubjectError: "the token's sub is not a string",
    }
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token lacks one of {', '.join(_CLAIMS)}"
    return next((text for kind, text in reasons.items() if isinstance(error, kind)), "the token is not a JWT")


def make_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Generate an Ed25519 pair and return the paths of ``name.pem`` (mode 644) and ``name.key`` (mode 600).

    Raises:
        FileExistsError: One of them exists; a key is never overwritten.
    """
    folder.mkdir(parents=True, exist_ok=True)
    public, secret = folder / f"{name}.pem", folder / f"{name}.key"
    for path in (public, secret):
        if path.exists():
            raise FileExistsError(f"{path} already exists")
    key = Ed25519PrivateKey.generate()
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    new = public.with_suffix(".new")  # the gateway must not read a partial key
    new.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    new.replace(public)
    return public, secret


def sign(secret: Path, user_id: str, *, audience: str = "dexorder", seconds: int = 900) -> str:
    """Return a token for a user that is valid from now; its `kid` is the key file's name without the suffix.

    Raises:
        ValueError: The file is not a private key.
    """
    try:
        key = load_pem_private_key(secret.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey | RSAPrivateKey):
        raise ValueError(f"{secret} is not an Ed25519 or RSA private key")
    now = int(time.time())
    claims = {"sub": user_id, "aud": audience, "iat": now, "exp": now + seconds}
    return jwt.encode(claims, key, _algorithm(key), headers={"kid": secret.stem})


def main(arguments: list[str] | None = None) -> None:
    """Run the command ``key``."""
    parser = argparse.ArgumentParser(
        prog="python -m dexorder_gateway.events.sessions.user_tokens", description="Users' JWTs."
    )
    commands = parser.add_subparsers(required=True, dest="command")
    keys = commands.add_parser("key", help="generate a pair of keys")
    keys.add_argument("folder", type=Path, metavar="DIR")
    keys.add_argument("name", metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        public, secret = make_keys(options.folder, options.name)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    print(f"{secret}\n  signs tokens; keep it secret\n{public}\n  goes into the folder DEXORDER_EVENTS_JWT_KEYS")


if __name__ == "__main__":
    main()
