"""Each event on 5571 is answered, however often the gateway is stopped and however many are in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.events.frozen import busy_cores, gateway_without_quotas, unanswered


@pytest.mark.smoke
def test_no_answer_is_lost_by_a_gateway_that_stalls_on_busy_cores(tmp_path: Path) -> None:
    with busy_cores(2), gateway_without_quotas(tmp_path) as gateway:
        missing, _ = unanswered(gateway, count=10_000, in_flight=2_000, freezes_s=[0.3] * 6)
        assert missing == 0
        assert gateway.metric('dexorder_gateway_event_messages_dropped_total{reason="container_full"}') == 0
