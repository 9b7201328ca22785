from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.numaflow.vertex import StartUdsource, Udsource


@pytest.fixture
def start_udsource(kafka: str, tmp_path: Path) -> Iterator[StartUdsource]:
    """Return a function that starts udsource for a topic; starts share a folder unless ``run`` is given."""
    count = itertools.count()
    with ExitStack() as stack:

        def start(topic: str, run: str = "run", **given: Any) -> Udsource:
            log = tmp_path / f"log-{next(count)}"
            return stack.enter_context(Udsource(tmp_path / run, log, topic=topic, **{"kafka": kafka, **given}))

        yield start
