import http.server
import socket
import threading

import grpc
import pytest
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder.supervisor.health import check, kafka_problem
from tests.rig.processes import free_ports


@pytest.mark.parametrize("scheme", ["grpc", "http", "kafka"])
async def test_closed_port_is_not_ready(scheme: str) -> None:
    answer = await check(f"{scheme}://127.0.0.1:{free_ports(1)[0]}")
    assert (answer.ready, answer.detail) == (False, "does not accept connections")


@pytest.mark.parametrize("scheme", ["grpc", "kafka"])
async def test_silent_server_is_not_ready(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections wait in its backlog
        port = mute.getsockname()[1]
        assert not (await check(f"{scheme}://127.0.0.1:{port}", timeout_s=0.2)).ready


async def test_grpc_health_decides() -> None:
    server, servicer = grpc.aio.server(), grpc_health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    answer = await check(f"grpc://127.0.0.1:{port}")
    assert (answer.ready, answer.detail) == (False, "runs, but is not serving yet")
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    assert (await check(f"grpc://127.0.0.1:{port}")).ready
    await server.stop(0)


async def test_health_of_one_service_is_not_that_of_the_server() -> None:
    server, servicer = grpc.aio.server(), grpc_health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    await servicer.set("KafkaPixy", health_pb2.HealthCheckResponse.NOT_SERVING)
    answer = await check(f"grpc://127.0.0.1:{port}/KafkaPixy")
    assert (answer.ready, answer.detail) == (False, "runs, but its service KafkaPixy is not serving yet")
    await server.stop(0)


async def test_problem_of_a_gateway_that_can_not_be_asked_is_not_kafka() -> None:
    assert await kafka_problem(f"127.0.0.1:{free_ports(1)[0]}", timeout_s=1.0) == ""


@pytest.mark.parametrize(("code", "ready"), [(200, True), (503, False)])
async def test_healthz_decides(code: int, ready: bool) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        assert (await check(f"http://127.0.0.1:{server.server_port}")).ready is ready
        server.shutdown()
        thread.join()


@pytest.mark.kafka
async def test_a_real_kafka_is_ready(kafka: str) -> None:
    assert (await check(f"kafka://{kafka}")).ready
