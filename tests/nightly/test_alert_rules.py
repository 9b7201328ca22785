"""Prometheus' own tool on the alert rules, their tests and the scrape configurations."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.paths import ROOT

FILES = ROOT / "deploy" / "prometheus"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed"),
]


@pytest.mark.parametrize(
    ("arguments", "file"),
    [
        (("check", "rules"), "alerts.yaml"),
        (("test", "rules"), "alerts_test.yaml"),
        (("check", "config"), "prometheus.yaml"),
        (("check", "config", "--syntax-only"), "kubernetes.yaml"),
    ],
)
def test_promtool_accepts(arguments: tuple[str, ...], file: str) -> None:
    done = subprocess.run(["promtool", *arguments, str(FILES / file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
