"""Lines of the driver's JVM with DEXORDER_LOG_FORMAT=json, from a session in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]

PROGRAM = """
import sys
from pathlib import Path
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.session import build_session
session = build_session(SparkSettings(), CatalogSettings.local(Path(sys.argv[1])))
jvm = session.sparkContext._jvm
logger = jvm.org.slf4j.LoggerFactory.getLogger("mine")
logger.warn('a \\x1b "quoted"\\nsecond line', jvm.java.lang.RuntimeException("cause"))
session.stop()
"""
OF_JAVA = "WARNING: Using incubator modules"
"""Begin of the one line that Java itself writes, before any configuration is read."""


def test_each_line_is_one_json_object(tmp_path: Path) -> None:
    environment = os.environ | {"DEXORDER_LOG_FORMAT": "json"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stderr.splitlines() if not line.startswith(OF_JAVA)]
    (mine,) = [each for each in lines if each["logger"] == "mine"]
    assert mine["event"] == 'a \x1b "quoted"\nsecond line' and "RuntimeException: cause" in mine["exception"]
    assert {"event", "level", "logger", "service", "timestamp"} <= lines[0].keys()
