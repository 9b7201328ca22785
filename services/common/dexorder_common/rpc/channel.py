"""gRPC channels to our services with TLS, client certificate and token from ``DEXORDER_CHANNEL_<NAME>``.

Without settings a channel is plaintext, for use inside a mesh or on one machine. Unix sockets are always plaintext.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import grpc
from grpc.aio import Metadata
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.config import is_loopback, read_settings
from dexorder_common.model.errors import AUTHORIZATION, OWN_AUTHORIZATION

CLIENT_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the default is one minute, and it overrides the option above
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
"""Options of every channel: detect a dead server, and reconnect soon after a restart."""
_SYNC_OPTIONS = (*CLIENT_KEEPALIVE, ("grpc.enable_retries", 0))
"""Options of a blocking channel. With retries, grpcio (1.76 to 1.85 at least) may lose the end of a stream that begins
while its connection is lost: the caller then waits forever, even after a cancellation or the deadline."""
Option = tuple[str, Any]
Entry = tuple[str, str]
"""Name and value of metadata."""


class ChannelSettings(BaseSettings):
    """Settings of a client of our services: ``DEXORDER_CHANNEL_<NAME>``, unless an alias is given."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        env_prefix="DEXORDER_CHANNEL_",
        env_ignore_empty=True,
        hide_input_in_errors=True,
    )

    tls_ca: Path | None = None
    """PEM file of the authority that signed the servers' certificates; turns TLS on for all these channels."""
    tls_certificate: Path | None = None
    """PEM file of our own certificate chain, for servers that require one; needs tls_key and tls_ca."""
    tls_key: Path | None = None
    """PEM file of our own key."""
    token: SecretStr | None = Field(default=None, validation_alias="DEXORDER_TOKEN")
    """Our token, for servers that require one; sent with every call."""
    token_metadata: Literal["authorization", "x-dexorder-token"] = Field(
        default="authorization", validation_alias="DEXORDER_TOKEN_METADATA"
    )
    """Metadata that carries our token; the second where a proxy uses ``authorization`` itself."""
    allow_insecure: bool = Field(default=False, validation_alias="DEXORDER_ALLOW_INSECURE")
    """Permit sending the token without TLS beyond loopback; for a mesh with a sidecar that encrypts."""

    @field_validator("token")
    @classmethod
    def _sendable(cls, token: SecretStr | None) -> SecretStr | None:
        # grpcio's error about metadata that it can't send would show the value
        text = token.get_secret_value().strip() if token else ""
        if not all("!" <= character <= "~" for character in text):
            raise ValueError("has characters other than visible ASCII")
        return SecretStr(text) if text else None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_certificate and not self.tls_ca:
            raise ValueError("tls_certificate needs tls_ca")
        return self


class UdfChannelSettings(ChannelSettings):
    """Settings of the channels to UDFs on other hosts. A UDF is not trusted: it never receives the suite's token."""

    model_config = SettingsConfigDict(env_prefix="DEXORDER_UDF_CHANNEL_")

    token: SecretStr | None = Field(default=None, validation_alias="DEXORDER_UDF_CHANNEL_TOKEN")
    """Token for UDFs that require one; sent to each UDF that is reached over gRPC."""


def open_channel(
    address: str,
    settings: ChannelSettings | None = None,
    *,
    options: Sequence[Option] = (),
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    """Return an asyncio channel, which connects at the first call.

    Args:
        address: host:port or ``unix:/path`` of the server.
        settings: None reads the environment.
        options: gRPC options that extend or override CLIENT_KEEPALIVE.
        interceptors: Interceptors of every call.

    Raises:
        ValueError: A setting is invalid, or a token would leave this machine without TLS.
        OSError: A file that the settings name can't be read.
    """
    credentials, entry = _security(address, settings)
    if credentials:
        return grpc.aio.secure_channel(
            address, credentials, options=_merged(options), interceptors=interceptors or None
        )
    both = [*interceptors, *([kind(entry) for kind in _AIO_INTERCEPTORS] if entry else [])]
    return grpc.aio.insecure_channel(address, options=_merged(options), interceptors=both or None)


def open_sync_channel(
    address: str, settings: ChannelSettings | None = None, *, options: Sequence[Option] = ()
) -> grpc.Channel:
    """Return a blocking channel; see `open_channel`."""
    credentials, entry = _security(address, settings)
    if credentials:
        return grpc.secure_channel(address, credentials, options=_merged(options, _SYNC_OPTIONS))
    channel = grpc.insecure_channel(address, options=_merged(options, _SYNC_OPTIONS))
    return grpc.intercept_channel(channel, _SyncToken(entry)) if entry else channel


def _security(address: str, settings: ChannelSettings | None) -> tuple[grpc.ChannelCredentials | None, Entry | None]:
    """Return TLS credentials, which carry the token, or None and the metadata to send in plaintext, if any."""
    settings = settings or read_settings(ChannelSettings)
    token = settings.token.get_secret_value() if settings.token else ""
    is_own = settings.token_metadata == OWN_AUTHORIZATION
    entry = ((OWN_AUTHORIZATION, token) if is_own else (AUTHORIZATION, f"Bearer {token}")) if token else None
    if not settings.tls_ca or address.startswith("unix:"):
        if token and not is_loopback(address) and not settings.allow_insecure:
            raise ValueError(
                f"the token would go to {address} without TLS; "
                f"set {settings.model_config['env_prefix']}TLS_CA or DEXORDER_ALLOW_INSECURE=1"
            )
        return None, entry
    credentials = grpc.ssl_channel_credentials(
        root_certificates=settings.tls_ca.read_bytes(),
        private_key=settings.tls_key.read_bytes() if settings.tls_key else None,
        certificate_chain=settings.tls_certificate.read_bytes() if settings.tls_certificate else None,
    )
    if entry:
        of_calls = grpc.metadata_call_credentials(_EveryCall(entry))
        credentials = grpc.composite_channel_credentials(credentials, of_calls)
    return credentials, None


def _merged(options: Sequence[Option], defaults: Sequence[Option] = CLIENT_KEEPALIVE) -> list[Option]:
    return list(dict((*defaults, *options)).items())


class _EveryCall(grpc.AuthMetadataPlugin):
    """Adds one entry of metadata to each call of an encrypted channel."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def __call__(self, context: grpc.AuthMetadataContext, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback((self._entry,), None)


class _Token:
    def __init__(self, entry: Entry) -> None:
        self._entry = entry


class _AioToken(_Token):
    async def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = Metadata(*(details.metadata or ()), self._entry)
        return await continuation(details._replace(metadata=metadata), request)


# grpc.aio uses an interceptor for the first of its classes only, so each call type has its own
class _UnaryUnary(_AioToken, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _AioToken._intercept  # type: ignore[assignment]


class _UnaryStream(_AioToken, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _AioToken._intercept  # type: ignore[assignment]


class _StreamUnary(_AioToken, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _AioToken._intercept  # type: ignore[assignment]


class _StreamStream(_AioToken, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream = _AioToken._intercept  # type: ignore[assignment]


_AIO_INTERCEPTORS: tuple[Callable[[Entry], Any], ...] = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...]
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class _SyncToken(
    _Token,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), self._entry)
        with_token = _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )
        return continuation(with_token, request)

    intercept_unary_unary = intercept_unary_stream = _intercept  # type: ignore[assignment]
    intercept_stream_unary = intercept_stream_stream = _intercept  # type: ignore[assignment]
