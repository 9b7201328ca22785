"""The driver's RPC: convert, ask the caretaker in a thread, convert back. Errors are mapped by `rpc.policy`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import grpc

from services.gen.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from services.gen.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from spark.maintenance.runner import MaintenanceRunner

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MAINTENANCE = pb.DESCRIPTOR.services_by_name["MaintenanceService"].full_name


class MaintenanceService(rpc.MaintenanceServiceServicer):
    """What ``dexorder maintain`` calls."""

    def __init__(self, runner: MaintenanceRunner) -> None:
        self._runner = runner

    async def Maintain(  # noqa: N802
        self, request: pb.MaintainRequest, context: Context
    ) -> AsyncIterator[pb.MaintainResponse]:
        """Table by table. A caller that leaves ends it behind the step in hand."""
        cancelled = threading.Event()
        cares = self._runner.maintain(tuple(request.tables), dry_run=request.dry_run, cancelled=cancelled)
        working = None
        try:
            while True:
                working = asyncio.ensure_future(asyncio.to_thread(next, cares, None))
                care = await asyncio.shield(working)
                if care is None:
                    return
                yield pb.MaintainResponse(**vars(care))
        finally:
            cancelled.set()
            if working is not None:
                await asyncio.gather(working, return_exceptions=True)
            cares.close()
