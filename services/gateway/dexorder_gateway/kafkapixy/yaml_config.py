"""Model of Kafka-Pixy's YAML file: its settings, their ranges and defaults, and the errors in it. Pure.

Kafka-Pixy ignores unknown keys; here they are errors, so that a misspelt key is not taken for a default. Keys that
Kafka-Pixy does not have: ``net.sasl.mechanism`` and ``tls.client_ca_path``. `yaml_settings` converts the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from dexorder_gateway.kafkapixy.yaml_values import NOT_A_DURATION, BadYaml, parse_duration, read_tree
from dexorder_gateway.pixy_flags import NO_FILE, PixyFlags

_MIN_WITHOUT_UNIT_NS = 1_000_000
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]*\]|[^\s:,\[\]]*):(?P<port>[0-9]{1,5})")
_TEXTS = {
    "extra_forbidden": "is not a known setting",
    "missing": "is missing",
    "too_short": "is empty",
    "model_type": "is not a mapping",
    "dict_type": "is not a mapping",
    "list_type": "is not a list",
}


class BadPixyConfig(ValueError):
    """The file can't be used; ``problems`` are one line each, starting with the place in the file."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


IGNORED = object()
"""Mark of a setting without effect here."""


def _duration_ns(text: object) -> object:
    if not isinstance(text, str):
        raise ValueError(NOT_A_DURATION)
    if not re.fullmatch("[+-]?[0-9]+", text):
        return parse_duration(text)
    # Without a unit Go takes nanoseconds, which is never meant by 300.
    if 0 < abs(int(text)) < _MIN_WITHOUT_UNIT_NS:
        raise ValueError(f"{text} lacks a unit and means {text} ns; use {text}s or {text}ms")
    return int(text)


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("is not host:port")
    return text


def _listen_address(text: str) -> str:
    """Return the address; Go's ``:19091`` means every address of the machine."""
    return f"[::]{text}" if _address(text).startswith(":") else text


def _peer_address(text: str) -> str:
    if _address(text).startswith(":"):
        raise ValueError("is not host:port")
    return text


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", text):
        raise ValueError("is not a version of Kafka; use for example 2.3.0")
    return text


def _at_most(limit: str) -> AfterValidator:
    def check(duration_ns: int) -> int:
        if duration_ns > parse_duration(limit):
            raise ValueError(f"is longer than {limit}, the limit of Kafka's client")
        return duration_ns

    return AfterValidator(check)


Duration = Annotated[int, BeforeValidator(_duration_ns), Field(ge=0)]
"""Nanoseconds."""
PositiveDuration = Annotated[int, BeforeValidator(_duration_ns), Field(gt=0)]
"""Nanoseconds, more than 0."""
Count = Annotated[int, Field(gt=0, le=2**31 - 1)]


class _Part(BaseModel):
    """Part of the file. An empty part or value counts as missing."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        if value is None:
            return {}
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class Kafka(_Part):
    """``kafka``: the cluster's address, and TLS to it."""

    seed_peers: Annotated[list[Annotated[str, AfterValidator(_peer_address)]], Field(min_length=1)] = Field(
        default=["localhost:9092"]
    )
    version: Annotated[str, AfterValidator(_version), IGNORED] = ""
    tls: bool = False
    ca_certificate_file: str = ""
    client_certificate_file: str = ""
    client_key_file: str = ""
    insecure: bool = False

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.client_certificate_file) != bool(self.client_key_file):
            raise ValueError("client_certificate_file and client_key_file must be set together")
        return self


class Sasl(_Part):
    """``net.sasl``: our credentials for Kafka."""

    enable: bool = False
    handshake: bool = True
    user: str = ""
    password: SecretStr = SecretStr("")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.enable and not (self.user and self.password.get_secret_value()):
            raise ValueError("enable needs user and password")
        return self


class Net(_Part):
    """``net``: connections to Kafka."""

    dial_timeout: PositiveDuration | None = None
    read_timeout: Annotated[PositiveDuration, _at_most("5m")] | None = None
    write_timeout: Annotated[PositiveDuration, _at_most("5m")] | None = None
    sasl: Sasl = Sasl()


class ZooKeeper(_Part):
    """``zoo_keeper``: not used, except that its session timeout is the group's."""

    seed_peers: Annotated[list[str], IGNORED] = Field(default=[])
    chroot: Annotated[str, IGNORED] = ""
    session_timeout: PositiveDuration | None = None


class Producer(_Part):
    """``proxies.<cluster>.producer``."""

    channel_buffer_size: Count = 4_096
    max_message_bytes: Annotated[int, Field(ge=1_000, le=1_000_000_000)] = 1_000_000
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "snappy"
    flush_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1_048_576
    flush_frequency: Annotated[Duration, _at_most("15m")] | None = None
    retry_backoff: Annotated[PositiveDuration, _at_most("5m")] | None = None
    retry_max: Count | None = None
    required_acks: Literal["no_response", "wait_for_local", "wait_for_all"] = "wait_for_all"
    shutdown_timeout: Duration = 30 * 10**9
    partitioner: Literal["hash", "random", "roundrobin"] = "hash"
    timeout: Annotated[PositiveDuration, _at_most("15m")] = 10 * 10**9


class Consumer(_Part):
    """``proxies.<cluster>.consumer``. Kafka-Pixy no longer has the last four, but files still do."""

    disabled: bool = False
    ack_timeout: PositiveDuration = 300 * 10**9
    channel_buffer_size: Count = 64
    fetch_max_bytes: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1_048_576
    fetch_max_wait: Annotated[Duration, _at_most("4m")] = 250 * 10**6
    long_polling_timeout: PositiveDuration = 3 * 10**9
    max_pending_messages: Count = 300
    max_retries: Annotated[int, Field(ge=-1)] = -1
    offsets_commit_interval: PositiveDuration = 500 * 10**6
    retry_backoff: Annotated[PositiveDuration, _at_most("5m")] = 500 * 10**6
    subscription_timeout: PositiveDuration = 15 * 10**9
    rebalance_delay: Annotated[Duration, IGNORED] = 0
    registration_timeout: Annotated[Duration, IGNORED] = 0
    backoff_timeout: Annotated[Duration, IGNORED] = 0
    offsets_commit_timeout: Annotated[Duration, IGNORED] = 0


class Proxy(_Part):
    """``proxies.<cluster>``."""

    client_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = ""
    kafka: Kafka = Kafka()
    net: Net = Net()
    zoo_keeper: ZooKeeper = ZooKeeper()
    producer: Producer = Producer()
    consumer: Consumer = Consumer()


class Tls(_Part):
    """``tls``: of our server."""

    certificate_path: str = ""
    key_path: str = ""
    client_ca_path: str = ""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.certificate_path) != bool(self.key_path):
            raise ValueError("certificate_path and key_path must be set together")
        if self.client_ca_path and not self.certificate_path:
            raise ValueError("client_ca_path needs certificate_path")
        return self


class PixyConfig(_Part):
    """Whole file; ``proxies`` are the clusters by name, in the file's order."""

    grpc_addr: Annotated[str, AfterValidator(_listen_address)] | None = None
    tcp_addr: Annotated[str, AfterValidator(_listen_address)] | None = None
    unix_addr: str = ""
    proxies: Annotated[dict[Annotated[str, Field(min_length=1)], Proxy], Field(min_length=1)]
    default_cluster: str = ""
    tls: Tls = Tls()
    logging: Annotated[Any, IGNORED] = None

    @model_validator(mode="after")
    def _default_is_there(self) -> Self:
        if self.default_cluster and self.default_cluster not in self.proxies:
            raise ValueError(f"default_cluster {self.default_cluster!r} is not in proxies")
        return self

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """Place in this file, and path, of each other file that will be read."""
        yield from _files("tls", self.tls, ("certificate_path", "key_path", "client_ca_path"))
        for name, proxy in self.proxies.items():
            if proxy.kafka.tls:
                names = ("ca_certificate_file", "client_certificate_file", "client_key_file")
                yield from _files(f"proxies.{name}.kafka", proxy.kafka, names)

    @property
    def ignored_settings(self) -> list[str]:
        """Places of the settings that were given and are ignored here."""
        found = list(_ignored(self, ""))
        found += [f"proxies.{name}.net.sasl.handshake" for name, p in self.proxies.items() if not p.net.sasl.handshake]
        return found


def parse_pixy_config(text: str | None, flags: PixyFlags = PixyFlags()) -> PixyConfig:  # noqa: B008 - it is frozen
    """Parse the text of a file, if there is one, and the flags, which override it.

    Raises:
        BadPixyConfig: Names each invalid place, and contains no password.
    """
    try:
        return PixyConfig.model_validate(flags.applied(NO_FILE if text is None else read_tree(text)))
    except BadYaml as error:
        raise BadPixyConfig([str(error)]) from None
    except ValidationError as error:
        raise BadPixyConfig([flags.named(_problem(each)) for each in error.errors(include_url=False)]) from None


def _problem(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"] if part != "[key]") or "the file"
    if (text := _TEXTS.get(error["type"])) is not None:
        return f"{place}: {text}"
    text = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    got = error.get("input")
    if not isinstance(got, str) or "sasl" in error["loc"] or repr(got) in text:
        return f"{place}: {text}"
    return f"{place}: {text} (got {got!r})"


def _files(place: str, part: _Part, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    yield from ((f"{place}.{name}", getattr(part, name)) for name in names if getattr(part, name))


def _ignored(part: _Part, place: str) -> Iterator[str]:
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name not in part.model_fields_set:
            continue
        if IGNORED in field.metadata:
            yield place + name
        elif isinstance(value, _Part):
            yield from _ignored(value, f"{place}{name}.")
        elif isinstance(value, dict):
            for key, each in value.items():
                yield from _ignored(each, f"{place}{name}.{key}.")
