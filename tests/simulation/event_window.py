"""A container that counts answers, with thousands of events in flight, and a gateway that stalls.

``docs/gateway-events.md`` promises that each copy on port 5571 is answered once. While the connection lasts, a
container may rely on that; a copy that is never answered costs it a place in its window for ever.
"""

from __future__ import annotations

import asyncio

from dexorder_common.messaging.frames import VERSION, decode_ack, encode_event
from dexorder_gateway.events.ingress.containers import Containers, _Entry
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.simulation.event_gateway import EventGateway, Providers
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.run import Run, silence
from tests.simulation.sqlite_disk import SqliteDisk
from tests.simulation.zmq_wires import SimulatedLink, Wires, key_of

NAME = "counter"
ROUNDS = 3
"""Windows of events that are sent."""


class WindowRun:
    """One run: the gateway is frozen for 0.3 s again and again while the window is full."""

    def __init__(self, seed: int, in_flight: int) -> None:
        self.in_flight = in_flight
        self.run = run = Run(seed)
        self.wires = Wires(run)
        self.wires.lag = (0.001, 0.05)  # the I/O thread waits for a core
        self.link: SimulatedLink
        self.total = ROUNDS * in_flight
        self.answered: set[str] = set()
        self.sent = 0
        self.is_over = False
        self.gateway = Process("gateway")
        containers = Containers([_Entry(container=NAME, curve=(key_of(NAME),), users="*")])
        disk, providers = SqliteDisk(f"window-{seed}"), Providers(run, run.generator("providers"))
        gateway = EventGateway(run, self.gateway, self.wires, disk, providers, containers, {}, set())
        run.loop.spawn(self.gateway, gateway.main((), {}))
        run.loop.spawn(Process(NAME), self._container())
        run.loop.spawn(Process("stalls"), self._stall(self.gateway))

    def check(self) -> Run:
        """Run it; `Broken` if an answer is missing."""
        run = self.run
        run.loop.run_until(lambda: self.is_over, limit_ns=120 * SECOND_NS)
        missing = self.sent - len(self.answered)
        if missing:
            run.fail(f"{missing} of {self.sent} events were never answered, though the connection never broke")
        run.loop.close()
        return run

    async def _container(self) -> None:
        woken = asyncio.Event()
        self.link = link = SimulatedLink(self.wires, Process(NAME), is_fast=False, wake=woken.set)
        first = None
        while self.run.loop.time() < 30.0:
            await woken.wait()
            woken.clear()
            first = first or link.wire
            if link.wire is not first:
                self.run.fail("the connection broke, which this scenario does not do")
            while (frames := link.receive()) is not None:
                self.answered.add(decode_ack(frames).event_id)
            while link.connected and self.sent - len(self.answered) < self.in_flight and self.sent < self.total:
                link.send([VERSION, encode_event(_event(self.sent))[1]])
                self.sent += 1
            if len(self.answered) == self.total:
                break
        self.is_over = True

    async def _stall(self, gateway: Process) -> None:
        random = self.run.generator("stalls")
        await asyncio.sleep(1.0)
        for _ in range(10):
            self.run.note("gateway is frozen for 0.3 s")
            self.run.loop.freeze(gateway)
            await asyncio.sleep(0.3)
            self.run.loop.thaw(gateway)
            await asyncio.sleep(random.uniform(0.01, 0.3))


def _event(number: int) -> pb.UserEvent:
    """Return an event without a usable contact: it is answered once, and final."""
    delivery = pb.DeliverySpec(priority=pb.NORMAL, channels=[pb.ChannelPreference(channel=pb.TELEGRAM)])
    return pb.UserEvent(
        user_id="zoe", event_id=f"e-{number}", timestamp=1, event_type=pb.ORDER_FILLED, payload=b"{}", delivery=delivery
    )


def simulate(seed: int, in_flight: int) -> Run:
    """Run one seed with so many events in flight; `Broken` if a promise does not hold."""
    with silence():
        return WindowRun(seed, in_flight).check()
