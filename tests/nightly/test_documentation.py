"""Every code block of README and the documentation that can run here, run beside a suite, page by page."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_gateway.config import GatewaySettings
from tests.documentation.blocks import BLOCKS, blocks_of
from tests.documentation.pages import PAGES
from tests.documentation.running import HTTP, SIMULATED, ports, read
from tests.rig.processes import free_block
from tests.rig.suite import Suite, running_suite

GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4"
TOPICS = GatewaySettings.model_fields["topics"].default
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Suite, dict[int, int]]]:
    """Start the suite with the UDFs of docs/udf-stream.md, and Kafka-Pixy's HTTP API."""
    folder = tmp_path_factory.mktemp("documentation")
    (udfs,) = [block.text for block in BLOCKS if block.text.startswith("# udfs.yaml")]
    for real, simulated in SIMULATED.items():
        udfs = udfs.replace(real, simulated)
    (folder / "udfs.yaml").write_text(udfs)
    http = free_block(1)
    with running_suite(
        folder / "state",
        DEXORDER_SPARK_UDFS=str(folder / "udfs.yaml"),
        DEXORDER_GATEWAY_TOPICS=f"{TOPICS},orders:4,spikes:1",
        DEXORDER_GATEWAY_HTTP_LISTEN=f"127.0.0.1:{http}",
    ) as running:
        yield running, ports(running.base_port) | {HTTP: http}


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with grpcurl, which Go compiles unless it is installed."""
    folder = tmp_path_factory.mktemp("tools")
    if shutil.which("grpcurl") is None and shutil.which("go") is not None:
        subprocess.run(["env", f"GOBIN={folder}", "go", "install", GRPCURL], check=True, timeout=500)
    return folder


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.runs])
def test_the_blocks_of(name: str, suite: tuple[Suite, dict[int, int]], tools: Path, tmp_path: Path) -> None:
    page = PAGES[name]
    absent = [tool for tool in page.tools if shutil.which(tool) is None and not (tools / tool).exists()]
    if absent:
        pytest.skip(f"{', '.join(absent)} is not installed")
    read(page, blocks_of(name), tmp_path / "page", *suite, tools)
