"""Which UDFs run: the file of the Spark host, what was registered, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from dexorder_common.model.udf import UdfCommand, UdfDefinition, UdfInput, UdfRegistration
from dexorder_spark.udf.programs import parse_declared, spec_of, wanted

FILE = """
udfs:
  average:
    prog: dexorder
    args: [udf, serve, moving_average, --stdio]
    env: {LEVEL: 1}
    options: {period: 10, field: close, flag: true}
    input: {table: ohlc, tickers: [BTC/USDT.SIM], periods: [1m, 3600], since: earliest}
    start: false
  fast:
    program: average
    options: {period: 3}
    output: {topic: averages}
"""
DECLARED = parse_declared(yaml.safe_load(FILE), "udfs.yaml")
COMMAND = UdfCommand("dexorder", ("udf", "serve", "moving_average", "--stdio"), {"LEVEL": "1"})


def registered(name: str, definition: UdfDefinition | None, *, stopped: bool = False) -> UdfRegistration:
    return UdfRegistration(name, 5, stopped, 0, definition)


def test_the_file_says_what_runs_and_with_which_options() -> None:
    found = wanted(DECLARED, [], any_command=False)
    assert [*found] == ["fast"]
    fast = found["fast"].definition
    assert fast.command == COMMAND and not found["fast"].fault
    assert fast.options == {"period": ("3",), "field": ("close",), "flag": ("true",)}
    assert DECLARED["average"].definition.input == UdfInput("ohlc", ("BTC/USDT.SIM",), (60, 3600), 0)
    spec = spec_of(fast, 1_000)
    assert (spec.prog, spec.args, spec.options["field"]) == ("dexorder", COMMAND.args, ["close"])


def test_a_call_starts_a_program_of_the_file_with_input_and_options_of_its_own() -> None:
    own = UdfDefinition("mine", "average", options={"period": ("7",)}, input=UdfInput("ticks"))
    (found,) = wanted(
        DECLARED, [registered("mine", own), registered("fast", None, stopped=True)], any_command=False
    ).values()
    assert found.definition.command == COMMAND and found.generation == 5 and not found.fault
    assert (found.definition.options["period"], found.definition.input.table) == (("7",), "ticks")


def test_a_declared_one_that_does_not_start_by_itself_is_started_by_name() -> None:
    found = wanted(DECLARED, [registered("average", None)], any_command=False)["average"]
    assert found.definition.command == COMMAND and found.definition.input.since_ns == 0 and not found.fault


def test_a_command_of_its_own_is_refused_unless_the_host_allows_it() -> None:
    own = registered("mine", UdfDefinition("mine", command=UdfCommand("sh", ("-c", "true"))))
    assert "DEXORDER_SPARK_UDF_ANY_COMMAND" in wanted(DECLARED, [own], any_command=False)["mine"].fault
    assert wanted(DECLARED, [own], any_command=True)["mine"].fault == ""


def test_a_program_that_the_file_lacks_is_a_fault_that_names_those_it_has() -> None:
    found = wanted(
        DECLARED, [registered("mine", UdfDefinition("mine", "other")), registered("x", None)], any_command=True
    )
    assert (
        found["mine"].fault
        == "program 'other' is not in DEXORDER_SPARK_UDFS of the Spark host; in it are: average, fast"
    )
    assert "program 'x'" in found["x"].fault


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({}, "none of prog, socket, grpc is set"),
        ({"prog": "a", "socket": "/s"}, "prog and socket of prog, socket, grpc is set"),
        ({"prog": "a", "program": "b"}, "program and command are set"),
        ({"program": "b"}, "program 'b' is not an entry with a command"),
        ({"socket": "/s", "args": ["x"]}, "args and env belong to prog"),
        ({"prog": "a", "typo": 1}, "typo is not a known key"),
        ({"prog": "a", "input": {"ticker": "X"}}, "input.ticker is not a known key"),
        ({"prog": "a", "input": {"table": "tickers"}}, "input.table 'tickers' is not one of ohlc, ticks"),
        ({"prog": "a", "input": {"tickers": ["BTC"]}}, "BTC"),
        ({"prog": "a", "input": {"periods": ["7m"]}}, "period '7m' is not one of"),
        ({"prog": "a", "input": {"table": "ticks", "periods": ["1m"]}}, "do not belong to table ticks"),
        ({"prog": "a", "input": {"table": "ticks", "history": True}}, "input.history does not belong"),
        ({"prog": "a", "input": {"since": "yesterday"}}, "input.since"),
        ({"prog": "a", "input": {"window": "1 hour"}}, "input.window '1 hour'"),
        ({"prog": "a", "output": {"topic": "dexorder.ohlc"}}, "is the suite's own"),
        ({"prog": "a", "output": {"topic": "a b"}}, "is not a topic's name"),
        ({"prog": "a", "output": {"title": "x"}}, "output.user_id is not"),
        ({"prog": "a", "timeout_seconds": 0}, "timeout_seconds 0 is not between"),
        ({"prog": "a", "timeout_seconds": "x"}, "timeout_seconds 'x' is not a number"),
        ({"prog": "a", "options": 3}, "options is not a map"),
        ({"prog": "a", "start": "no"}, "start 'no' is not true or false"),
        (7, "the entry is not a map"),
    ],
)
def test_a_wrong_entry_is_named(entry: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r"udfs\.yaml: UDF one: ") as error:
        parse_declared({"udfs": {"one": entry}}, "udfs.yaml")
    assert reason in str(error.value)


@pytest.mark.parametrize("content", [[], {"udf": {}}, {"udfs": []}])
def test_a_file_of_another_form_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"udfs\.yaml has other keys than udfs"):
        parse_declared(content, "udfs.yaml")
