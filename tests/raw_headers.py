"""Records with arbitrary bytes as header names, by librdkafka's C API: confluent-kafka accepts only text."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka

_TIMEOUT_MS = 30_000
_PRODUCER = 0
_COPY = 2
_TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER = 1, 3, 4, 7, 9
"""rd_kafka_vtype_t: selects the member of the union."""


class _Bytes(ctypes.Structure):
    _fields_ = (("data", c_char_p), ("size", c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("value", c_char_p), ("size", c_ssize_t))


class _Member(ctypes.Union):
    _fields_ = (
        ("topic", c_char_p),
        ("partition", c_int32),
        ("value", _Bytes),
        ("flags", c_int),
        ("header", _Header),
        ("pad", c_char * 64),
    )


class _Field(ctypes.Structure):
    """rd_kafka_vu_t."""

    _fields_ = (("kind", c_int), ("member", _Member))


_CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (c_void_p, ()),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "produceva": (c_void_p, (c_void_p, POINTER(_Field), c_size_t)),
    "flush": (c_int, (c_void_p, c_int)),
    "destroy": (None, (c_void_p,)),
}


@cache
def _librdkafka() -> Any:
    """Return the librdkafka that confluent-kafka contains."""
    (path,) = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _CALLS.items():
        call = getattr(library, f"rd_kafka_{name}")
        call.restype = result
        call.argtypes = arguments
    return library


def produce_raw(bootstrap: str, topic: str, values: Iterable[bytes], headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Write records with these headers to partition 0, in order."""
    kafka, problem = _librdkafka(), ctypes.create_string_buffer(512)
    options = kafka.rd_kafka_conf_new()
    setting = (b"bootstrap.servers", bootstrap.encode())
    assert kafka.rd_kafka_conf_set(options, *setting, problem, len(problem)) == 0, problem.value
    producer = kafka.rd_kafka_new(_PRODUCER, options, problem, len(problem))
    assert producer, problem.value
    try:
        same = [_Field(_HEADER, _Member(header=_Header(name, data, len(data)))) for name, data in headers]
        same += [
            _Field(_TOPIC, _Member(topic=topic.encode())),
            _Field(_PARTITION, _Member(partition=0)),
            _Field(_FLAGS, _Member(flags=_COPY)),
        ]
        for value in values:
            fields = [*same, _Field(_VALUE, _Member(value=_Bytes(value, len(value))))]
            assert not kafka.rd_kafka_produceva(producer, (_Field * len(fields))(*fields), len(fields))
        assert kafka.rd_kafka_flush(producer, _TIMEOUT_MS) == 0
    finally:
        kafka.rd_kafka_destroy(producer)
