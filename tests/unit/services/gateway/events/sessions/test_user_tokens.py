"""Users' JWTs: accepted and refused ones; a refusal shows nothing of the token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from pathlib import Path
from typing import Any

import jwt
import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dexorder_common.clock import ManualClock
from dexorder_common.config import BadSettings
from dexorder_common.model.errors import Unauthenticated
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.sessions import user_tokens
from dexorder_gateway.events.sessions.user_tokens import TokenUser, TokenVerifier, make_keys

NOW = 1_800_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path, "desk")
    return tmp_path


def private_key(folder: Path, name: str = "desk") -> bytes:
    return (folder / f"{name}.key").read_bytes()


def checked(folder: Path | None) -> TokenVerifier:
    return TokenVerifier(EventsSettings(jwt_keys=folder), ManualClock(NOW * 1_000_000_000))


def signed(key: Any, *, alg: str = "EdDSA", kid: Any = "desk", drop: str = "", **claims: Any) -> str:
    said = {"sub": "alice", "aud": "dexorder", "iat": NOW, "exp": NOW + 600} | claims
    return jwt.encode({k: v for k, v in said.items() if k != drop}, key, alg, headers={"kid": kid} if kid else {})


def test_a_valid_token_authenticates_its_user_until_it_expires(folder: Path) -> None:
    assert checked(folder).user(signed(private_key(folder))) == TokenUser("alice", (NOW + 600) * 1_000_000_000)


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": NOW}, "has expired"),
        ({"exp": NOW - 1}, "has expired"),
        ({"exp": NOW + 901}, "is valid for more than 900 s"),
        ({"iat": NOW - 400, "exp": NOW + 501}, "is valid for more than 900 s"),
        ({"iat": NOW + 6}, "not valid yet"),
        ({"nbf": NOW + 6}, "not valid yet"),
        ({"exp": "soon"}, "exp is not a time"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": math.nan}, "exp is not a time"),
        ({"exp": math.inf}, "exp is not a time"),
        ({"iat": None}, "lacks one of exp, iat, aud, sub"),
        ({"drop": "iat"}, "lacks one of exp, iat, aud, sub"),
        ({"drop": "exp"}, "lacks one of"),
        ({"drop": "sub"}, "lacks one of"),
        ({"drop": "aud"}, "lacks one of"),
        ({"aud": "another"}, "aud is not the expected one"),
        ({"aud": ["another", "third"]}, "aud is not the expected one"),
        ({"sub": ""}, "sub does not have 1 to 256 bytes"),
        ({"sub": "a\0b"}, "sub does not have 1 to 256 bytes"),
        ({"sub": "a\nb"}, "sub does not have 1 to 256 bytes, all printable"),
        ({"sub": "é" * 129}, "sub does not have 1 to 256 bytes"),
        ({"kid": None}, "kid is not the name of a known key"),
        ({"kid": "../desk"}, "kid is not the name of a known key"),
        ({"kid": "desk.pem"}, "kid is not the name of a known key"),
    ],
)
def test_a_bad_claim_is_named(folder: Path, claims: dict[str, Any], problem: str) -> None:
    token = signed(private_key(folder), **claims)
    with pytest.raises(Unauthenticated, match=problem) as caught:
        checked(folder).user(token)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize("claims", [{"aud": ["x", "dexorder"]}, {"iat": NOW + 4}, {"nbf": NOW + 4}, {"exp": NOW + 1}])
def test_limits_of_valid_claims(folder: Path, claims: dict[str, Any]) -> None:
    assert checked(folder).user(signed(private_key(folder), **claims)).user_id == "alice"


def test_only_the_algorithm_of_the_key_is_accepted(folder: Path) -> None:
    """Refused: no signature, the public key as a shared secret, another type of key, another key."""
    rsa_key = rsa.generate_private_key(65_537, 2_048)
    put_public(folder / "desk-rsa.pem", rsa_key)
    make_keys(folder / "others", "desk")
    keys = checked(folder)
    assert keys.user(signed(rsa_key, alg="RS256", kid="desk-rsa")).user_id == "alice"
    public = (folder / "desk.pem").read_bytes()
    for token in (
        by_hand({"alg": "none", "kid": "desk"}, lambda _: b""),
        by_hand({"alg": "HS256", "kid": "desk"}, lambda text: hmac.digest(public, text, hashlib.sha256)),
        by_hand({"kid": "desk"}, lambda _: b""),
        signed(rsa_key, alg="RS512", kid="desk-rsa"),
        signed(rsa_key, alg="PS256", kid="desk-rsa"),
        signed(rsa_key, alg="RS256", kid="desk"),
        signed(private_key(folder), kid="desk-rsa"),
        signed(private_key(folder / "others")),
        signed(private_key(folder))[:-4] + "AAAA",
        "",
        "a.b.c",
        "..",
        "é",
        "x" * 9_000,
    ):
        with pytest.raises(Unauthenticated) as caught:
            keys.user(token)
        assert not token or token not in str(caught.value)


def by_hand(header: dict[str, str], sign: Any) -> str:
    claims = {"sub": "alice", "aud": "dexorder", "iat": NOW, "exp": NOW + 600}
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    return (text + b"." + base64.urlsafe_b64encode(sign(text)).rstrip(b"=")).decode()


def put_public(path: Path, key: Any) -> None:
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def test_a_key_is_valid_while_its_file_exists(folder: Path) -> None:
    keys = checked(folder)
    make_keys(folder, "second")
    for name in ("desk", "second"):
        assert keys.user(signed(private_key(folder, name), kid=name)).user_id == "alice"
    (folder / "desk.pem").unlink()
    with pytest.raises(Unauthenticated, match="kid is not the name of a known key"):
        keys.user(signed(private_key(folder)))
    assert keys.user(signed(private_key(folder, "second"), kid="second"))


def test_a_file_that_is_not_a_key_is_skipped_and_logged_once(folder: Path) -> None:
    put_public(folder / "short.pem", rsa.generate_private_key(65_537, 1_024))
    put_public(folder / "curve.pem", ec.generate_private_key(ec.SECP256R1()))
    (folder / "private.pem").write_bytes(private_key(folder))
    with structlog.testing.capture_logs() as logs:
        keys = checked(folder)
        for _ in range(3):
            keys.user(signed(private_key(folder)))
    assert {entry["file"] for entry in logs if entry["log_level"] == "error"} == {
        "short.pem",
        "curve.pem",
        "private.pem",
    }
    assert len(logs) == 4
    assert "PRIVATE" not in str(logs)


def test_without_a_folder_there_are_no_sessions(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(Unauthenticated, match="DEXORDER_EVENTS_JWT_KEYS"):
        checked(None).user(signed(private_key(folder)))
    with pytest.raises(BadSettings, match="DEXORDER_EVENTS_JWT_KEYS"):
        checked(tmp_path / "nowhere")


def test_the_command_generates_keys_that_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    user_tokens.main(["key", str(folder), "dev"])
    assert (folder / "dev.key").stat().st_mode & 0o777 == 0o600
    assert "PRIVATE" not in capsys.readouterr().out
    token = user_tokens.sign(folder / "dev.key", "bob", seconds=60)
    assert TokenVerifier(EventsSettings(jwt_keys=folder)).user(token).user_id == "bob"
    with pytest.raises(SystemExit, match="already exists"):
        user_tokens.main(["key", str(folder), "dev"])
    with pytest.raises(ValueError, match="is not an Ed25519 or RSA private key"):
        user_tokens.sign(folder / "dev.pem", "bob")


def test_an_rsa_key_signs_too(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65_537, 2_048)
    put_public(tmp_path / "big.pem", key)
    secret = tmp_path / "big.key"
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert TokenVerifier(EventsSettings(jwt_keys=tmp_path)).user(user_tokens.sign(secret, "carol")).user_id == "carol"
