"""Habits that all commands share: help with an example, short options, completion, exit codes, errors as JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from dexorder.cli.app import app
from dexorder.cli.terminal import output
from dexorder.cli.terminal.reporting import wants_json
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as pb
from tests.fakes.candle_table import TICKER
from tests.fakes.relay_server import FakeRelay
from tests.rig.command import dexorder

ROOT_COMMAND: Any = get_command(app)
SHORT = {
    "-V": "--version",
    "-d": "--dir",
    "-f": "--follow",
    "-h": "--help",
    "-j": "--json",
    "-o": "--out",
    "-p": "--set",
    "-q": "--quiet",
    "-r": "--relay",
    "-s": "--since",
    "-t": "--ticker",
    "-u": "--until",
}
"""Long forms of the short options; -n is the number of whatever a command counts."""
NUMBERS = {"--limit", "--count", "--top"}


def commands(command: Any = ROOT_COMMAND, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, (*path, name))
        else:
            yield (*path, name), each


COMMANDS = dict(commands())


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    result = dexorder(*path, "--help")
    assert result.exit_code == 0
    assert not re.search(r"<(int|float|str|list|bool)\b", result.stdout)
    _, heading, shown = result.stdout.rpartition("  Example:\n" if "  Example:\n" in result.stdout else "  Examples:\n")
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    assert heading and lines, result.stdout
    for line in lines:
        words = shlex.split(line)
        words = words[: next((place for place, word in enumerate(words) if word in (">", "<")), None)]
        assert words[: len(path) + 1] == ["dexorder", *path], line
        with COMMANDS[path].make_context(path[-1], words[len(path) + 1 :]):
            pass  # an unknown option, or a value that its type refuses, raises


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_short_option_means_the_same_in_every_command(path: tuple[str, ...]) -> None:
    for parameter in COMMANDS[path].params:
        long = [name for name in parameter.opts if name.startswith("--")]
        for short in (name for name in parameter.opts if re.fullmatch("-[^-]", name)):
            assert (short == "-n" and long[0] in NUMBERS) or SHORT.get(short) == long[0], (short, long)
        for short, full in SHORT.items():
            assert full not in long or short in parameter.opts, f"{full} without {short}"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["read", "--json"], True),
        (["read", "-j"], True),
        (["read", "-qj"], True),
        (["read", "--since", "-1j"], False),
        (["read", "--", "--json"], False),
        (["trigger", "-n", "3"], False),
    ],
)
def test_json_is_seen_among_any_arguments(arguments: list[str], expected: bool) -> None:
    assert wants_json(arguments) is expected


@pytest.mark.parametrize(
    ("arguments", "kind", "code"),
    [
        (["read", "BTCUSDT", "1h", "--json"], "RequestRefused", 2),
        (["read", TICKER, "1h", "-j", "--bogus"], "InvalidArguments", 2),
        (["read", "--json"], "InvalidArguments", 2),
        (["reed", "--json"], "InvalidArguments", 2),
        (["--bogus", "read", "--json"], "InvalidArguments", 2),
        (["history", TICKER, "1h", "--json"], "InvalidArguments", 2),
        (["history", TICKER, "1h", "--since", "soon", "--json"], "RequestRefused", 2),
        (["requests", "show", "none", "--json"], "RequestUnknown", 1),
        (["markets", "MOON", "--json"], "VenueUnknown", 1),
        (["coverage", TICKER, "1h", "--relay", "127.0.0.1:1", "--json"], "RelayUnreachable", 1),
        (["events", "send", "alice", "NOTHING", "--json"], "EventRefused", 2),
        (["udf", "run", "nothing", "--json"], "RequestRefused", 2),
    ],
)
def test_an_error_is_a_line_on_stderr_and_json_where_it_was_asked_for(
    fake: FakeRelay, arguments: list[str], kind: str, code: int
) -> None:
    result = dexorder(*arguments)
    found = json.loads(result.stdout)["error"]
    assert (found["kind"], found["exit_code"], result.exit_code) == (kind, code, code)
    assert found["message"] in " ".join(result.stderr.split())
    without = dexorder(*(each for each in arguments if each not in ("--json", "-j")))
    assert (without.stdout, without.exit_code) == ("", code)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("read BTCUSDT 1h", "ticker 'BTCUSDT'"),
        (f"read {TICKER} 7s", "period '7s' is not one of"),
        (f"read {TICKER} 1h --json --chart", "--chart can't be combined with --json"),
        (f"coverage {TICKER} 1h --since soon", "since 'soon'"),
        (f"coverage {TICKER} 1h --since 2024-01-02 --until 2024-01-01", "not after"),
        (f"coverage --why {TICKER} 1h", "--why and TIME go together"),
        (f"coverage --why {TICKER} 1h 2024-01-01 --detail", "--why and TIME go together"),
        (f"coverage --why {TICKER} 1h 2024-01-01 --since -1d", "--why and TIME go together"),
        ("requests list --state done", "--state: 'done' is not a state; use QUEUED, RUNNING or FINISHED"),
        (f"watch {TICKER} --period 1x", "'1x' is not one of"),
        (f"read {TICKER} 1h --bogus", "No such option: --bogus"),
        ("reed", "No such command 'reed'"),
        ("requests list --limit none", "Invalid value for '--limit' / '-n'"),
        (
            "history",
            "dexorder: TICKER and PERIOD are required, for example BTC/USDT.BINANCE 1h; or --file and PERIOD; see `dex",
        ),
        ("events list --status lost", "--status: 'lost' is not a status"),
        ("events send alice ORDER_FILLED {", "payload is not JSON"),
        ("events send alice ORDER_FILLED []", "payload is a list; a dict or a payload message is accepted"),
        ("events send alice NOTHING", "event_type 'NOTHING' is not one of ORDER_PLACED"),
        (
            "events send alice 1 --priority high",
            "priority 'HIGH' is not one of INFORMATIONAL, NORMAL, CRITICAL",
        ),
        ("events send alice 1 --channel fax", "channel 'FAX' is not one of ACTIVE_SESSION"),
        (
            "events send alice 1 --channel email:later",
            "--channel: 'email:later' is not a channel; use NAME or NAME:active",
        ),
    ],
)
def test_refused_arguments_are_one_line(fake: FakeRelay, arguments: str, says: str) -> None:
    result = dexorder(*arguments.split())
    assert result.exit_code == 2 and says in result.stderr, result.stderr
    assert result.stderr.startswith("dexorder: ") and len(result.stderr.splitlines()) == 1
    assert not fake.asked and not fake.submitted and not fake.subscriptions


def test_a_request_that_failed_is_one_json_value(fake: FakeRelay) -> None:
    fake.ends.status = pb.RequestRecord().status.__class__(2)
    fake.ends.error_message = "gave up"
    result = dexorder("history", TICKER, "1h", "-s", "2024-01-01", "-u", "2024-01-02", "-j", "-q")
    assert (result.exit_code, json.loads(result.stdout)["error_message"]) == (1, "gave up")
    assert "ended ERROR: gave up" in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["realtime", "start", "BCT/USDT.SIM"],
        ["watch", "BCT/USDT.SIM", "--json"],
        ["trigger", "add", "t", "SELECT `close` FROM ohlc WHERE `close` > 0", "-t", "BCT/USDT.SIM"],
        ["udf", "start", "ema", "-t", "BCT/USDT.SIM"],
        ["realtime", "list", "-t", "BCT/USDT.SIM"],
        ["trigger", "list", "--ticker", "BCT/USDT.SIM", "--json"],
        ["trigger", "test", "SELECT `close` FROM ohlc WHERE `close` > 0", "-t", "BCT/USDT.SIM"],
    ],
)
def test_a_misspelt_ticker_is_refused_with_similar_ones(fake: FakeRelay, words: list[str]) -> None:
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=[pb.Instrument(ticker=TICKER)])
    result = dexorder(*words)
    assert result.exit_code == 2 and f"'BCT/USDT.SIM' is not a market of SIM (did you mean {TICKER}?)" in result.stderr
    assert not fake.subscriptions


@pytest.mark.parametrize("command", [["realtime", "list"], ["trigger", "list"]])
def test_a_filter_that_is_not_a_ticker_or_names_an_unknown_exchange_is_refused(
    fake: FakeRelay, command: list[str]
) -> None:
    result = dexorder(*command, "--ticker", "BTCUSDT")
    assert result.exit_code == 2 and "ticker 'BTCUSDT' is not SYMBOL.VENUE" in result.stderr
    result = dexorder(*command, "--ticker", "BTC/USDT.BINANSE")
    assert result.exit_code == 1 and "no ingestor has reported markets of 'BINANSE'" in result.stderr


@pytest.mark.parametrize("command", [["realtime", "list"], ["trigger", "list"]])
def test_a_listed_market_of_which_nothing_runs_is_an_empty_list(fake: FakeRelay, command: list[str]) -> None:
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=[pb.Instrument(ticker=TICKER)])
    assert dexorder(*command, "--ticker", TICKER).exit_code == 0


def test_a_running_subscription_is_listed_though_the_exchange_no_longer_lists_its_market(fake: FakeRelay) -> None:
    assert dexorder("realtime", "start", "OLD/USDT.SIM", "--id", "mine").exit_code == 0
    fake.markets["SIM"] = pb.ListInstrumentsResponse(instruments=[pb.Instrument(ticker=TICKER)])
    listed = dexorder("realtime", "list", "--ticker", "OLD/USDT.SIM")
    assert listed.exit_code == 0 and "mine" in listed.stdout


HOSTILE = "\x1b[2J[red]\x9b31m\u202e:smile:"
SHOWN = r"\x1b[2J[red]\x9b31m\u202e:smile:"


def test_text_of_others_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    out = output.stdout()
    out.print(HOSTILE)
    out.print(output.plain_table((HOSTILE,), [(HOSTILE,)]))
    out.print(output.fields_table([("id", HOSTILE)]))
    from dexorder.cli.terminal.progress import bars_on

    with bars_on(out) as bars:
        bars.add_task(HOSTILE, total=1, unit="pages", note=HOSTILE)
    printed = capsys.readouterr().out
    assert printed.count(SHOWN) >= 5, printed
    assert not set(HOSTILE) & set("\x1b\x9b\u202e") & set(printed)


def test_no_line_of_a_pipe_ends_with_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    out = output.stdout()
    out.print(output.plain_table(("a", "b"), [("1", "2"), ("1,000", "a long cell"), ("x", "")]))
    out.print(output.fields_table([("id", "1"), ("a longer name", "")]))
    printed = capsys.readouterr().out.splitlines()
    assert "1,000   a long cell" in [line.strip() for line in printed]
    assert [line for line in printed if line != line.rstrip()] == []


def test_an_error_is_printed_as_it_is(fake: FakeRelay) -> None:
    fake.refuse = HOSTILE
    arguments = ["history", TICKER, "1h", "-s", "2024-01-01", "-u", "2024-01-02", "--json"]
    result = dexorder(*arguments)
    assert result.exit_code == 2 and SHOWN in result.stderr and "\x1b" not in result.stderr
    assert HOSTILE in json.loads(result.stdout)["error"]["message"]
    assert not {"\x1b", "\x9b", "\u202e"} & set(result.stdout)


def test_help_takes_the_width_of_the_terminal() -> None:
    def lines(columns: int) -> list[str]:
        environment = os.environ | {"COLUMNS": str(columns)}
        command = [sys.executable, "-m", "dexorder", "--help"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()

    wide, narrow = lines(200), lines(60)
    assert any(line.endswith("its settings are in the environment (docs/settings.md).") for line in wide)
    assert max(map(len, wide)) <= 120 and max(map(len, narrow)) <= 60
    whole = [" ".join(" ".join(each).split()) for each in (wide, narrow)]
    assert whole[0] == whole[1], "a summary is wrapped, not cut"
