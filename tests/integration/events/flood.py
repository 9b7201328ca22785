"""A container that floods the gateway: ``python -m tests.integration.events.flood``, with an order on stdin.

Nine in ten events are NORMAL, the others CRITICAL. At the end one line of JSON counts what it was told.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import zmq

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import CRITICAL, NORMAL, USER_EVENT, VERSION, event

BATCH_S = 0.005
LAST_S = 100.0
"""Timeout of the last events' acks: a flooding container has to wait."""


def main() -> None:
    order = json.loads(sys.stdin.readline())
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    for option, name in (
        (zmq.CURVE_PUBLICKEY, "public"),
        (zmq.CURVE_SECRETKEY, "secret"),
        (zmq.CURVE_SERVERKEY, "server"),
    ):
        dealer.setsockopt_string(option, order[name])
    dealer.connect(order["router"])
    print("begun", flush=True)
    told: Counter[str] = Counter()
    sent, started_s = 0, time.monotonic()
    while (passed_s := time.monotonic() - started_s) < order["seconds"]:
        for _ in range(int(order["rate"] * passed_s) - sent):
            if not dealer.poll(0, zmq.POLLOUT):
                break
            kind = CRITICAL if sent % 10 == 0 else NORMAL
            made = event(f"flooded-{sent % 50}", f"{kind}-{time.monotonic_ns()}", kind, [pb.WEB])
            dealer.send_multipart([VERSION, USER_EVENT + made.SerializeToString()])
            sent += 1
        listen(dealer, told, BATCH_S)
    until_s = time.monotonic() + LAST_S
    while told["QUEUED"] + told["quota exceeded"] < sent and time.monotonic() < until_s:
        listen(dealer, told, BATCH_S)
    dealer.close()
    context.term()
    print(json.dumps({**told, "sent": sent}))


def listen(dealer: zmq.Socket[bytes], told: Counter[str], seconds: float) -> None:
    """Count acks within a time."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0 and dealer.poll(int(left_s * 1000)):
        ack = pb.EventAck.FromString(dealer.recv_multipart()[1][1:])
        told[ack.error_message or pb.AckStatus.Name(ack.status)] += 1
        if ack.status == pb.ACK_ERROR and ack.event_id.startswith(f"{CRITICAL}-"):
            told["CRITICAL refused"] += 1


if __name__ == "__main__":
    main()
