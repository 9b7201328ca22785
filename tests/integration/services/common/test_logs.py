"""Log output on standard error, in another process because logs are configured once per process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import logging, sys, structlog
from dexorder_common import logs
logs.configure("x", level="debug", style=sys.argv[1])
log = structlog.get_logger("x")
def fail(password):
    raise KeyError("what went wrong")
try:
    fail("hush-hush")
except KeyError:
    log.exception("it failed")
    logging.getLogger("other").exception("it failed there")
log.debug("it starts", token="hush-hush", db_password="hush-hush", Authorization="Bearer hush-hush", user="desk")
"""


@pytest.mark.parametrize("style", ["console", "json"])
def test_tracebacks_and_named_secrets_are_logged_without_values(style: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, style], capture_output=True, text=True, check=True, timeout=100
    )
    assert done.stderr.count("Traceback") == 2
    assert done.stderr.count("what went wrong") == 2
    assert "desk" in done.stderr
    assert "hush-hush" not in done.stderr
