"""Kafka-Pixy's own YAML file, as its users have it: what may stand there, and what is wrong with it. Pure.

Kafka-Pixy reads over keys it does not know; here they are errors, as a typing error must not pass for a default. Own
keys, which it does not have: ``net.sasl.mechanism`` and ``tls.client_ca_path``. What the settings become is in
``pixy_clusters``.
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

from services.gateway.kafkapixy.durations import parse_duration
from services.gateway.kafkapixy.yaml_values import BadYaml, read_tree

_LEAST_WITHOUT_UNIT_NS = 1_000_000
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]*\]|[^\s:,\[\]]*):(?P<port>[0-9]{1,5})")
_TEXTS = {
    "extra_forbidden": "there is no such setting",
    "missing": "is missing",
    "too_short": "is empty",
    "model_type": "is no mapping",
    "dict_type": "is no mapping",
    "list_type": "is no list",
}


class BadPixyConfig(ValueError):
    """The file can't be used.

    Attributes:
        problems: One line each, which begins with the place in the file.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class _WithoutMeaning:
    """Marks a setting that does nothing here."""


WITHOUT_MEANING = _WithoutMeaning()


def _duration_ns(text: object) -> object:
    if not isinstance(text, str):
        raise ValueError("no duration like 500ms or 1m30s")
    if not re.fullmatch("[+-]?[0-9]+", text):
        return parse_duration(text)
    # Without a unit Go takes nanoseconds, which nobody means who writes 300.
    if 0 < abs(int(text)) < _LEAST_WITHOUT_UNIT_NS:
        raise ValueError(f"a duration without its unit, which is {text} ns: write {text}s or {text}ms")
    return int(text)


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError("no host:port")
    return text


def _listen_address(text: str) -> str:
    """Go's ``:19091`` is every address of the machine."""
    return f"[::]{text}" if _address(text).startswith(":") else text


def _peer_address(text: str) -> str:
    if _address(text).startswith(":"):
        raise ValueError("no host:port")
    return text


def _version(text: str) -> str:
    if not re.fullmatch(r"[0-9]+(\.[0-9]+){1,3}", text):
        raise ValueError("no version of Kafka, like 2.3.0")
    return text


def _at_most(most: str) -> AfterValidator:
    def check(duration_ns: int) -> int:
        if duration_ns > parse_duration(most):
            raise ValueError(f"longer than {most}, the most that Kafka's client takes")
        return duration_ns

    return AfterValidator(check)


Duration = Annotated[int, BeforeValidator(_duration_ns), Field(ge=0)]
"""Nanoseconds."""
SomeTime = Annotated[int, BeforeValidator(_duration_ns), Field(gt=0)]
"""Nanoseconds, not 0."""
Count = Annotated[int, Field(gt=0, le=2**31 - 1)]


class _Part(BaseModel):
    """Part of the file. An empty part and an empty value are as good as none."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        if value is None:
            return {}
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value


class Kafka(_Part):
    """``kafka``: where the cluster is, and TLS to it."""

    seed_peers: Annotated[list[Annotated[str, AfterValidator(_peer_address)]], Field(min_length=1)] = Field(
        default=["localhost:9092"]
    )
    version: Annotated[str, AfterValidator(_version), WITHOUT_MEANING] = ""
    tls: bool = False
    ca_certificate_file: str = ""
    client_certificate_file: str = ""
    client_key_file: str = ""
    insecure: bool = False

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.client_certificate_file) != bool(self.client_key_file):
            raise ValueError("client_certificate_file and client_key_file go together")
        return self


class Sasl(_Part):
    """``net.sasl``: who we are to Kafka."""

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

    dial_timeout: SomeTime | None = None
    read_timeout: Annotated[SomeTime, _at_most("5m")] | None = None
    write_timeout: Annotated[SomeTime, _at_most("5m")] | None = None
    sasl: Sasl = Sasl()


class ZooKeeper(_Part):
    """``zoo_keeper``: there is none; its session timeout is the group's."""

    seed_peers: Annotated[list[str], WITHOUT_MEANING] = Field(default=[])
    chroot: Annotated[str, WITHOUT_MEANING] = ""
    session_timeout: SomeTime | None = None


class Producer(_Part):
    """``producer``."""

    channel_buffer_size: Count = 4_096
    max_message_bytes: Annotated[int, Field(ge=1_000, le=1_000_000_000)] = 1_000_000
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "snappy"
    flush_bytes: Annotated[int, Field(ge=0, le=2**31 - 1)] = 1_048_576
    flush_frequency: Annotated[Duration, _at_most("15m")] | None = None
    retry_backoff: Annotated[SomeTime, _at_most("5m")] | None = None
    retry_max: Count | None = None
    required_acks: Literal["no_response", "wait_for_local", "wait_for_all"] = "wait_for_all"
    shutdown_timeout: Duration = 30 * 10**9
    partitioner: Literal["hash", "random", "roundrobin"] = "hash"
    timeout: Annotated[SomeTime, _at_most("15m")] = 10 * 10**9


class Consumer(_Part):
    """``consumer``. The last four are gone from Kafka-Pixy, but not from people's files."""

    disabled: bool = False
    ack_timeout: SomeTime = 300 * 10**9
    channel_buffer_size: Count = 64
    fetch_max_bytes: Annotated[int, Field(gt=0, le=1_000_000_000)] = 1_048_576
    fetch_max_wait: Annotated[Duration, _at_most("4m")] = 250 * 10**6
    long_polling_timeout: SomeTime = 3 * 10**9
    max_pending_messages: Count = 300
    max_retries: Annotated[int, Field(ge=-1)] = -1
    offsets_commit_interval: SomeTime = 500 * 10**6
    retry_backoff: Annotated[SomeTime, _at_most("5m")] = 500 * 10**6
    subscription_timeout: SomeTime = 15 * 10**9
    rebalance_delay: Annotated[Duration, WITHOUT_MEANING] = 0
    registration_timeout: Annotated[Duration, WITHOUT_MEANING] = 0
    backoff_timeout: Annotated[Duration, WITHOUT_MEANING] = 0
    offsets_commit_timeout: Annotated[Duration, WITHOUT_MEANING] = 0


class Proxy(_Part):
    """``proxies.<cluster>``."""

    client_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]*$")] = ""
    kafka: Kafka = Kafka()
    net: Net = Net()
    zoo_keeper: ZooKeeper = ZooKeeper()
    producer: Producer = Producer()
    consumer: Consumer = Consumer()


class Tls(_Part):
    """``tls``: our own side."""

    certificate_path: str = ""
    key_path: str = ""
    client_ca_path: str = ""

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if bool(self.certificate_path) != bool(self.key_path):
            raise ValueError("certificate_path and key_path go together")
        if self.client_ca_path and not self.certificate_path:
            raise ValueError("client_ca_path is of no use without certificate_path")
        return self


class PixyConfig(_Part):
    """The whole file.

    Attributes:
        proxies: Clusters by name, in the file's order.
    """

    grpc_addr: Annotated[str, AfterValidator(_listen_address)] | None = None
    tcp_addr: Annotated[str, WITHOUT_MEANING] = ""
    unix_addr: str = ""
    proxies: Annotated[dict[Annotated[str, Field(min_length=1)], Proxy], Field(min_length=1)]
    default_cluster: str = ""
    tls: Tls = Tls()
    logging: Annotated[Any, WITHOUT_MEANING] = None

    @model_validator(mode="after")
    def _default_is_there(self) -> Self:
        if self.default_cluster and self.default_cluster not in self.proxies:
            raise ValueError(f"default_cluster {self.default_cluster!r} is none of proxies")
        return self

    @property
    def files(self) -> Iterator[tuple[str, str]]:
        """Place in the file and path of each file it names that will be read."""
        yield from _files("tls", self.tls, ("certificate_path", "key_path", "client_ca_path"))
        for name, proxy in self.proxies.items():
            if proxy.kafka.tls:
                names = ("ca_certificate_file", "client_certificate_file", "client_key_file")
                yield from _files(f"proxies.{name}.kafka", proxy.kafka, names)

    @property
    def without_meaning(self) -> list[str]:
        """Places of the settings that were given and do nothing here."""
        found = list(_without_meaning(self, ""))
        found += [f"proxies.{name}.net.sasl.handshake" for name, p in self.proxies.items() if not p.net.sasl.handshake]
        return found


def parse_pixy_config(text: str) -> PixyConfig:
    """Read the file's text.

    Raises:
        BadPixyConfig: Names each place that is wrong; a password is nowhere in it.
    """
    try:
        return PixyConfig.model_validate(read_tree(text))
    except BadYaml as error:
        raise BadPixyConfig([str(error)]) from None
    except ValidationError as error:
        raise BadPixyConfig([_problem(each) for each in error.errors(include_url=False)]) from None


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


def _without_meaning(part: _Part, place: str) -> Iterator[str]:
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name not in part.model_fields_set:
            continue
        if WITHOUT_MEANING in field.metadata:
            yield place + name
        elif isinstance(value, _Part):
            yield from _without_meaning(value, f"{place}{name}.")
        elif isinstance(value, dict):
            for key, each in value.items():
                yield from _without_meaning(each, f"{place}{name}.{key}.")
