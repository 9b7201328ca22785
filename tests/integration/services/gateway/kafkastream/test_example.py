"""The example of docs/gateway-kafka.md is executed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.fixtures_gateway import GatewayThread, MakeTopic
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "gateway-kafka.md").read_text()


@pytest.mark.kafka
def test_example_runs(
    shared_gateway: GatewayThread, kafka_topic: MakeTopic, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    code = example.replace("localhost:50053", shared_gateway.address).replace("dexorder.ticks", kafka_topic(4))
    names: dict[str, Any] = {}
    exec(compile(code, "gateway-kafka.md", "exec"), names)
    names["channel"].close()
    assert names["seen"] == 3_000
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("batch")]
    assert printed == [f"batch {n} begins at {n * 1_000}, 0 failed" for n in range(3)]
