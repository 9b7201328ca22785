"""What the package says of itself: version, license, short options."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib

import pytest
from typer.testing import CliRunner

import dexorder
from dexorder.cli.app import app
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_version_is_that_of_the_installed_package() -> None:
    assert dexorder.__version__ == PROJECT["version"], "installed after the version has changed: make setup"
    assert dexorder.__version__ == importlib.metadata.version("dexorder")
    assert "__version__" in dir(dexorder) and "Client" in dir(dexorder)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dexorder.nothing


def test_version_of_a_checkout_that_is_not_installed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert dexorder.__version__ == "unknown"


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_command_shows_its_version(option: str) -> None:
    shown = CliRunner().invoke(app, [option])
    assert (shown.exit_code, shown.stdout) == (0, f"dexorder {importlib.metadata.version('dexorder')}\n")


@pytest.mark.parametrize("words", [[], ["history"], ["requests"], ["requests", "show"], ["events"], ["realtime"]])
def test_h_is_help(words: list[str]) -> None:
    runner = CliRunner()
    short, long = (runner.invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.stdout) == (0, long.stdout)
    assert short.stdout.startswith("Usage:")


def test_wheel_has_license_and_notice() -> None:
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert "Version 2.0, January 2004" in (ROOT / "LICENSE").read_text()
    assert "Kafka-Pixy" in (ROOT / "NOTICE").read_text()


@pytest.mark.parametrize(
    "statement",
    [
        "from dexorder import AsyncClient, Client",
        "import dexorder.cli.history.queries",
        "import dexorder.cli.suite.commands",
    ],
)
def test_a_client_that_reads_no_table_does_not_load_what_reads_tables(statement: str) -> None:
    barred = ("ccxt", "numpy", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy", "prometheus_client")
    code = f"import sys; {statement}; print([name for name in {barred} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
