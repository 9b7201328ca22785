"""RPC of the driver: convert, run the maintenance in a thread, convert back. The server interceptor maps errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from dexorder_spark.maintenance.runner import MaintenanceRunner

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MAINTENANCE = pb.DESCRIPTOR.services_by_name["MaintenanceService"].full_name


class MaintenanceService(rpc.MaintenanceServiceServicer):
    """Service behind ``dexorder maintain``."""

    def __init__(self, runner: MaintenanceRunner) -> None:
        self._runner = runner

    async def Maintain(  # noqa: N802
        self, request: pb.MaintainRequest, context: Context
    ) -> AsyncIterator[pb.MaintainResponse]:
        """Maintain table after table. If the caller cancels, the work ends after the current step."""
        cancelled = threading.Event()
        results = self._runner.maintain(tuple(request.tables), dry_run=request.dry_run, cancelled=cancelled)
        working = None
        try:
            while True:
                working = asyncio.ensure_future(asyncio.to_thread(next, results, None))
                result = await asyncio.shield(working)
                if result is None:
                    return
                yield pb.MaintainResponse(**vars(result))
        finally:
            cancelled.set()
            if working is not None:
                await asyncio.gather(working, return_exceptions=True)
            results.close()
