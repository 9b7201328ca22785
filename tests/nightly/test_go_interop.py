"""gRPC's interop cases by grpc-go against the native transport."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.unit.services.common.rpc.native import NEEDS_MODULE
from tests.unit.services.common.rpc.native.rig import Handlers, serving, until

CASES = [
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "cancel_after_begin",
    "cancel_after_first_response",
    "timeout_on_sleeping_server",
    "custom_metadata",
    "status_code_and_message",
    "unimplemented",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client with the modules that bench/pixy_load has."""
    folder = tmp_path_factory.mktemp("interop")
    shutil.copy(ROOT / "tests" / "nightly" / "go_interop" / "main.go", folder)
    for name in ("go.mod", "go.sum"):
        shutil.copy(ROOT / "bench" / "pixy_load" / name, folder)
    subprocess.run(["go", "build", "-mod=mod", "-o", "interop", "."], cwd=folder, check=True, timeout=600)
    return folder / "interop"


@NEEDS_MODULE
@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
async def test_interop_cases(client: Path) -> None:
    handlers = Handlers()
    async with serving(handlers) as address:
        child = await asyncio.create_subprocess_exec(client, address, stdout=subprocess.PIPE)
        async with asyncio.timeout(180):
            output, _ = await child.communicate()
        assert output.decode().split() == CASES, output.decode()
        await until(lambda: not handlers.running)
