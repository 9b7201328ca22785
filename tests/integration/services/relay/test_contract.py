"""HistoryService's contract through pytest-grpc's stub fixtures, as a synchronous client sees it.

The plugin starts synchronous servers only and our servicers are asyncio, so its ``grpc_server`` and ``grpc_addr`` are
replaced: the relay runs on a loop in a thread, and the plugin's channel and stub fixtures are used as they are.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import grpc
import pytest

from dexorder_common.clock import SystemClock
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay.server import relay
from tests.unit.services.relay.harness import catalog_settings, request, settings


@pytest.fixture(scope="module")
def grpc_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a relay in a thread; gives its address."""
    folder, address = tmp_path_factory.mktemp("relay"), Future[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with relay(settings(folder), catalog_settings(folder), SystemClock()) as running:
            address.set_result(running.address)
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    yield address.result(timeout=60)
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def grpc_addr(grpc_server: str) -> str:
    return grpc_server


@pytest.fixture(scope="module")
def grpc_stub_cls() -> type[RelayStubs]:
    return RelayStubs


def test_submit_get_watch_cancel_and_the_notification(grpc_stub: Any) -> None:
    answer = grpc_stub.history.SubmitHistorical(request("r", 0, 10, client_id="me")).answer
    assert (answer.request_id, answer.status, answer.notification_topic) == (
        "r",
        ingest.SubmitResponse.QUEUED,
        "RESPONSE:me",
    )
    record = grpc_stub.history.GetRequest(rpb.GetRequestRequest(request_id="r")).record
    assert (record.state, record.request) == (rpb.REQUEST_STATE_QUEUED, request("r", 0, 10, client_id="me"))
    assert record.progress == rpb.Progress(expected_periods=10, expected_pages=1, jobs=1)
    watch = grpc_stub.history.WatchProgress(rpb.WatchProgressRequest(request_id="r"))
    assert next(watch).state == rpb.REQUEST_STATE_QUEUED
    grpc_stub.history.CancelRequest(rpb.CancelRequestRequest(request_id="r"))
    assert [each.state for each in watch][-1] == rpb.REQUEST_STATE_FINISHED
    stream = grpc_stub.history.WatchNotifications(rpb.WatchNotificationsRequest(topic="RESPONSE:me"))
    opened = next(stream).opened
    assert opened.cursor.epoch and opened.cursor.sequence == 0
    reported = next(stream).notification
    assert (reported.ready.error_message, reported.ready.status) == (
        "cancelled",
        ingest.HistoryReadyNotification.ERROR,
    )
    stream.cancel()
    after = grpc_stub.history.WatchNotifications(
        rpb.WatchNotificationsRequest(topic="RESPONSE:me", after=reported.cursor)
    )
    assert next(after).opened.cursor == reported.cursor
    grpc_stub.history.SubmitHistorical(request("next", 0, 10, client_id="me"))
    grpc_stub.history.CancelRequest(rpb.CancelRequestRequest(request_id="next"))
    assert next(after).notification.ready.request_id == "next"
    after.cancel()


def test_errors_keep_their_codes_for_a_synchronous_client(grpc_stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        grpc_stub.history.GetRequest(rpb.GetRequestRequest(request_id="nobody"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in str(caught.value.details())
