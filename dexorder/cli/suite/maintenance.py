"""Maintenance of the Iceberg tables by the Spark driver, which is their only writer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from dexorder.errors import DexorderError, MaintenanceFailed
from dexorder.supervisor.addresses import SPARK, address_of
from dexorder_common.model.errors import Code
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.client_retry import code_of, details_of, error_text
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_protos.dexorder.pipeline.v1.maintenance_service_pb2_grpc import MaintenanceServiceStub


@dataclass(frozen=True, slots=True)
class TableCare:
    """Maintenance of one table, or its dry run. ``removed_files`` counts files that no kept snapshot needs."""

    table: str
    data_files_before: int
    data_files_after: int
    delete_files_before: int
    delete_files_after: int
    expired_snapshots: int
    kept_snapshots: int
    removed_files: int
    took_ms: int


async def maintain(
    spark: str | None = None, tables: Sequence[str] = (), *, dry_run: bool = False
) -> AsyncIterator[TableCare]:
    """Compact tables and expire snapshots; yield a result for each table when it is done.

    Args:
        spark: Address of the driver, host:port; default ``DEXORDER_SPARK_ADDRESS``, else the suite on this machine.
        tables: Full names; all tables of the suite if empty.
        dry_run: Return the planned changes, without making them.

    Raises:
        MaintenanceFailed: The driver cannot be reached, runs no query now, or does not know the table.
    """
    address = address_of(SPARK, spark)
    try:
        channel = open_channel(address)
    except (ValueError, OSError) as error:
        raise DexorderError(f"can't connect to {address}: {error}") from None
    async with channel:
        stub: Any = MaintenanceServiceStub(channel)
        try:
            async for message in stub.Maintain(pb.MaintainRequest(tables=tables, dry_run=dry_run)):
                yield TableCare(*(getattr(message, name) for name in TableCare.__slots__))
        except grpc.aio.AioRpcError as error:
            if code_of(error) is not Code.UNAVAILABLE:
                raise MaintenanceFailed(f"Spark's driver at {address} answered {error_text(error)}") from None
            raise MaintenanceFailed(
                f"Spark's driver at {address} can't do it now ({details_of(error)}); it must be running "
                "(`dexorder up`), or elsewhere: --spark or DEXORDER_SPARK_ADDRESS"
            ) from None
