"""A ROUTER behind a door that reads nothing before it is told to; a process of its own, since libzmq may end it.

It prints where it listens; for each line on stdin it reads all there is and prints how many messages that was.
"""

from __future__ import annotations

import sys

import zmq

from services.common.messaging.zmq_tcp_proxy import open_doors

HEARTBEAT_MS = 100
_QUIET_MS = 500


def main() -> None:
    with open_doors() as doors, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 100 * HEARTBEAT_MS)
        print(doors.bind(router, "tcp://127.0.0.1:0"), flush=True)
        for _ in sys.stdin:
            taken = 0
            while router.poll(_QUIET_MS):
                router.recv_multipart()
                taken += 1
            print(taken, flush=True)


if __name__ == "__main__":
    main()
