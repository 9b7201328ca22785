"""Answers that never come to their end."""

from __future__ import annotations

import asyncio
import socket
import struct

from aiohttp import web

from services.exchange_sim.faults import FaultRule

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def keep_silent(request: web.Request, rule: FaultRule, answer: web.Response) -> web.StreamResponse:
    """Carry out a fault of `faults.SILENCES`; what is returned never arrives whole.

    ``hang`` sends nothing, ``stall`` the head and half of the body, ``drip`` the head and then a byte each ``drip_s``.
    ``reset`` answers with a TCP reset.
    """
    body = answer.body if isinstance(answer.body, bytes) else b""
    sent: web.StreamResponse = web.Response()
    if rule.kind in ("stall", "drip"):
        sent = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
        await sent.prepare(request)
    if rule.kind == "drip":
        for byte in body:
            await sent.write(bytes([byte]))
            await asyncio.sleep(rule.drip_s)
    if rule.kind == "stall":
        await sent.write(body[: len(body) // 2])
    if rule.kind in ("hang", "stall"):
        await asyncio.sleep(rule.hang_s)
    _cut(request, reset=rule.kind == "reset")
    return sent


def _cut(request: web.Request, *, reset: bool) -> None:
    if request.transport is None:
        return
    if reset:
        own: socket.socket = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    request.transport.abort()
