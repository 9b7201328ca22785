"""Kafka-Pixy's command line: its flags, read as Go reads them, as settings of its file. Pure.

A flag overrides the file's setting; one that names a cluster's setting means the default cluster. Without a file the
flags are the whole configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dexorder_common.config import BadSettings

_DEFAULT_CLUSTER = "default"
NO_FILE: Mapping[str, Any] = {"proxies": {_DEFAULT_CLUSTER: {}}}
"""Contents of a file that says nothing: one cluster with the default settings."""
_TRUE, _FALSE = ("1", "t", "T", "true", "TRUE", "True"), ("0", "f", "F", "false", "FALSE", "False")


class _Flag(NamedTuple):
    place: tuple[str, ...]
    """Keys in the file."""
    of_cluster: bool = False
    is_switch: bool = False
    is_list: bool = False


_FLAGS = {
    "grpcAddr": _Flag(("grpc_addr",)),
    "tcpAddr": _Flag(("tcp_addr",)),
    "unixAddr": _Flag(("unix_addr",)),
    "logging": _Flag(("logging",)),
    "kafkaPeers": _Flag(("kafka", "seed_peers"), of_cluster=True, is_list=True),
    "zookeeperPeers": _Flag(("zoo_keeper", "seed_peers"), of_cluster=True, is_list=True),
    "tls": _Flag(("kafka", "tls"), of_cluster=True, is_switch=True),
    "caCertFile": _Flag(("kafka", "ca_certificate_file"), of_cluster=True),
    "clientCertFile": _Flag(("kafka", "client_certificate_file"), of_cluster=True),
    "clientCertKeyFile": _Flag(("kafka", "client_key_file"), of_cluster=True),
    "insecureTLS": _Flag(("kafka", "insecure"), of_cluster=True, is_switch=True),
    "config": _Flag(()),
    "pidFile": _Flag(()),
}


@dataclass(frozen=True, slots=True)
class PixyFlags:
    """Flags of one command line; an empty value counts as missing, as in Kafka-Pixy.

    Attributes:
        config: Kafka-Pixy's file; empty without one.
        pid_file: File for the number of the process; empty for none.
        values: The other flags, by name.
    """

    config: str = ""
    pid_file: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def applied(self, tree: object) -> object:
        """Return a file's contents, or `NO_FILE`, with the flags in their places."""
        if not isinstance(tree, dict):
            return tree  # a file that its reader refuses
        made = dict(tree)
        for name, text in self.values.items():
            flag = _FLAGS[name]
            value: Any = [each.strip() for each in text.split(",")] if flag.is_list else text
            keys = (*self._cluster_place(tree), *flag.place) if flag.of_cluster else flag.place
            _set(made, keys, value)
        return made

    def _cluster_place(self, tree: Mapping[str, Any]) -> tuple[str, ...]:
        proxies = tree.get("proxies")
        first = next(iter(proxies), _DEFAULT_CLUSTER) if isinstance(proxies, dict) else _DEFAULT_CLUSTER
        return "proxies", str(tree.get("default_cluster") or first)

    def named(self, problem: str) -> str:
        """Return a problem of the file with the flag's name for its place, if a flag is the reason."""
        for name in self.values:
            suffix = ".".join(_FLAGS[name].place)
            place, _, text = problem.partition(":")
            if place == suffix or place.startswith(f"{suffix}.") or f".{suffix}" in place:
                return f"-{name}:{text}"
        return problem


def read_flags(arguments: Sequence[str]) -> PixyFlags:
    """Return the flags of a command line; BadSettings for one that Kafka-Pixy does not have, or without its value."""
    values: dict[str, str] = {}
    left = iter(arguments)
    for argument in left:
        name, has_value, value = argument.lstrip("-").partition("=")
        flag = _FLAGS.get(name)
        if flag is None or not argument.startswith("-") or argument.startswith("---"):
            known = " ".join(f"-{each}" for each in _FLAGS)
            raise BadSettings(f"{argument!r} is not a flag of Kafka-Pixy; these are: {known}")
        values[name] = _switched(name, value or "true") if flag.is_switch else value if has_value else _next(name, left)
    given = {name: value for name, value in values.items() if value}
    return PixyFlags(given.pop("config", ""), given.pop("pidFile", ""), given)


def _next(name: str, left: Iterable[str]) -> str:
    for value in left:
        return value
    raise BadSettings(f"-{name} needs a value")


def _switched(name: str, value: str) -> str:
    if value not in (*_TRUE, *_FALSE):
        raise BadSettings(f"-{name}: {value!r} is not true or false")
    return "true" if value in _TRUE else ""  # false is Kafka-Pixy's default, and overrides no file


def _set(tree: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a value in a nested mapping without changing the given inner ones; a value that is no mapping stays."""
    *inner, last = keys
    for key in inner:
        below = tree.get(key)
        if below is not None and not isinstance(below, dict):
            return
        tree[key] = dict(below or {})
        tree = tree[key]
    tree[last] = value
