"""ROUTER behind a proxy that reads nothing until it is told to; its own process, since libzmq may abort it.

It prints its address; for each line on stdin it reads all messages and prints their number.
"""

from __future__ import annotations

import sys

import zmq

from dexorder_common.messaging.zmq_tcp_proxy import zmq_tcp_proxy

HEARTBEAT_MS = 100
_QUIET_MS = 500


def main() -> None:
    with zmq_tcp_proxy() as proxy, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 100 * HEARTBEAT_MS)
        print(proxy.bind(router, "tcp://127.0.0.1:0"), flush=True)
        for _ in sys.stdin:
            messages = 0
            while router.poll(_QUIET_MS):
                router.recv_multipart()
                messages += 1
            print(messages, flush=True)


if __name__ == "__main__":
    main()
