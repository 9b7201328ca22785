"""Registrations of UDFs in the relay's database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from dexorder_common.model.udf import UdfRegistration
from dexorder_common.rpc.udf_messages import decode_registration, encode_registration
from dexorder_protos.dexorder.udf.v1 import udf_registry_service_pb2 as pb
from dexorder_relay.store.schema import Batch


def store_udf(batch: Batch, registration: UdfRegistration) -> None:
    """Store a registration in place of that before."""
    message = encode_registration(registration).SerializeToString(deterministic=True)
    batch.insert("OR REPLACE INTO udfs", name=registration.name, registration=message)


def read_udfs(connection: sqlite3.Connection) -> Iterator[UdfRegistration]:
    """Yield all registrations."""
    for (message,) in connection.execute("SELECT registration FROM udfs ORDER BY name"):
        yield decode_registration(pb.UdfRegistration.FromString(message))
