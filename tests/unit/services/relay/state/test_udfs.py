"""Rules of the registry of UDFs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dexorder_common.model.errors import AlreadyExists, Exhausted, InvalidRequest, NotFound
from dexorder_common.model.udf import UdfDefinition, UdfInput, UdfRegistration, UdfState, UdfStatus
from dexorder_relay.state import udfs
from dexorder_relay.state.udfs import KEPT_LINES, MAX_REPORTED, UdfRegistry

NOW_NS = 1_700_000_000_000_000_000
DECLARED = UdfDefinition("declared", program="declared")
GIVEN = UdfDefinition("given", program="declared", options={"period": ("10",)})


def registry(*statuses: UdfStatus) -> UdfRegistry:
    found = UdfRegistry()
    found.report([DECLARED], statuses, {}, now_ns=NOW_NS)
    return found


def start(
    found: UdfRegistry, definition: UdfDefinition | None, name: str = "given", **more: bool
) -> UdfRegistration | None:
    made = found.start(name, definition, anew=more.get("anew", False), client_id="me", wall_ns=NOW_NS)
    if made is not None:
        found.keep(made)
    return made


def test_the_first_number_is_1_where_no_clock_says_more() -> None:
    found = registry()
    assert found.stop("declared") == UdfRegistration("declared", 1, True)
    made = found.start("given", GIVEN, anew=False, client_id="me", wall_ns=0)
    assert made is not None and made.generation == 1


def test_a_start_makes_a_registration_with_a_number_that_grows() -> None:
    found = registry()
    first = start(found, GIVEN)
    assert first == UdfRegistration("given", NOW_NS // 1_000, False, 0, GIVEN, "me")
    found.keep(replace(found.stop("given")))
    second = start(found, None)  # the definition that was given before
    assert second is not None and first is not None
    assert (second.definition, second.generation, second.since_generation) == (GIVEN, first.generation + 1, 0)


def test_a_start_of_what_runs_changes_nothing() -> None:
    found = registry()
    assert start(found, GIVEN) is not None
    assert start(found, GIVEN) is None
    assert start(found, None) is None
    with pytest.raises(AlreadyExists, match="runs with another definition; stop it first"):
        start(found, replace(GIVEN, input=UdfInput("ticks")))
    anew = start(found, GIVEN, anew=True)
    assert anew is not None and anew.since_generation == anew.generation


def test_one_that_has_failed_or_was_stopped_is_started_again() -> None:
    for state in (UdfState.FAILED, UdfState.STOPPED):
        found = registry()
        first = start(found, GIVEN)
        assert first is not None
        found.report([DECLARED], [UdfStatus("given", state, "why", generation=first.generation)], {}, now_ns=NOW_NS)
        assert start(found, replace(GIVEN, options={})) is not None


def test_a_declared_one_is_started_and_stopped_by_its_name() -> None:
    found = registry(UdfStatus("declared", UdfState.RUNNING))
    assert start(found, None, "declared") is None  # it runs
    found.keep(found.stop("declared"))
    assert not found.runs("declared")
    made = start(found, None, "declared")
    assert made is not None and made.definition is None and not made.stopped


def test_an_unknown_one_is_neither_started_nor_stopped() -> None:
    with pytest.raises(NotFound, match="declared are: declared"):
        start(registry(), None)
    with pytest.raises(NotFound, match="'given' is not known"):
        registry().stop("given")
    with pytest.raises(NotFound):
        registry().lines("given", 0)


@pytest.mark.parametrize("name", ["", "Upper", "a-b", "1a", "a" * 49, "ünder"])
def test_names_are_those_of_tables(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a lower-case letter"):
        start(registry(), replace(GIVEN, name=name), name)


def test_the_list_joins_what_was_registered_and_reported() -> None:
    found = registry(UdfStatus("declared", UdfState.RUNNING, rows=7), UdfStatus("gone", UdfState.STOPPED))
    made = start(found, GIVEN)
    assert made is not None
    listed = {each.status.name: each for each in found.listed()}
    assert [*listed] == ["declared", "given", "gone"]
    assert (listed["declared"].status.rows, listed["declared"].declared, listed["declared"].definition) == (
        7,
        True,
        DECLARED,
    )
    assert (listed["given"].status.state, listed["given"].client_id) == (UdfState.UNKNOWN, "me")
    old = UdfStatus("given", UdfState.FAILED, "of the start before", generation=made.generation - 1)
    found.report([DECLARED], [old], {}, now_ns=NOW_NS)
    assert {each.status.name: each.status.state for each in found.listed()}["given"] is UdfState.UNKNOWN


def test_udfs_of_all_clients_are_limited_and_those_that_are_there_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udfs, "MAX_UDFS", 2)
    found = registry()
    for name in ("one", "two"):
        assert start(found, replace(GIVEN, name=name), name) is not None
    with pytest.raises(Exhausted, match="there are 2 UDFs already; start one of them with this definition"):
        start(found, replace(GIVEN, name="three"), "three")
    found.keep(found.stop("one"))
    assert start(found, replace(GIVEN, name="one", options={"period": ("20",)}), "one") is not None
    assert [*found.registrations] == ["one", "two"] and found.runs("two")


def test_lines_are_numbered_and_bounded() -> None:
    found = registry(UdfStatus("declared", UdfState.RUNNING), UdfStatus("other", UdfState.RUNNING))
    statuses = [UdfStatus(each, UdfState.RUNNING) for each in ("declared", "other")]
    own = {"other": [(NOW_NS, "its own")]}
    for first in range(0, KEPT_LINES + 50, 50):
        lines = [(NOW_NS, f"line {number}") for number in range(first, first + 50)]
        found.report([DECLARED], statuses, {"declared": lines, **(own if not first else {})}, now_ns=NOW_NS)
    kept = found.lines("declared", 0)
    assert len(kept) == KEPT_LINES and kept[-1].text == f"line {KEPT_LINES + 49}"
    assert [each.text for each in found.lines("declared", kept[-2].number)] == [kept[-1].text]
    assert [each.text for each in found.lines("other", 0)] == ["its own"], "one that writes much takes no other's room"


def test_a_report_of_too_many_or_without_a_part_changes_nothing() -> None:
    found = registry(UdfStatus("declared", UdfState.RUNNING))
    many = [UdfStatus(f"n{n}", UdfState.RUNNING) for n in range(MAX_REPORTED // 2 + 1)]
    found.report([], many, {}, now_ns=NOW_NS + 1, more=True)
    with pytest.raises(InvalidRequest, match="part 2 is not the next one, 1"):
        found.report([], [], {}, now_ns=NOW_NS + 1, part=2)
    with pytest.raises(Exhausted, match="a report of 10002 UDFs"):
        others = [UdfStatus(f"m{n}", UdfState.RUNNING) for n in range(MAX_REPORTED // 2 + 1)]
        found.report([], others, {}, now_ns=NOW_NS + 1, part=1)
    with pytest.raises(InvalidRequest, match="part 1 is not the next one, 0"):
        found.report([], [], {}, now_ns=NOW_NS + 1, part=1)
    assert ([*found.declared], [*found.statuses], found.reported_ns) == (["declared"], ["declared"], NOW_NS)
    found.report([], many, {}, now_ns=NOW_NS + 1, more=True)  # a driver that started again begins with part 0
    found.report([DECLARED], [], {}, now_ns=NOW_NS + 2)
    assert ([*found.statuses], found.reported_ns) == ([], NOW_NS + 2)


def test_a_report_that_has_ended_has_no_further_part() -> None:
    found = registry()
    with pytest.raises(InvalidRequest, match="part 1 is not the next one, 0"):
        found.report([GIVEN], (), {}, now_ns=NOW_NS, part=1)
    many = [replace(GIVEN, name=f"u{number}") for number in range(MAX_REPORTED + 1)]
    with pytest.raises(Exhausted):
        found.report(many, (), {}, now_ns=NOW_NS, more=True)
    with pytest.raises(InvalidRequest, match="part 1 is not the next one, 0"):
        found.report([GIVEN], (), {}, now_ns=NOW_NS, part=1)
    assert found.declared == {"declared": DECLARED}
