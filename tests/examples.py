"""Numbers of examples of tests that take long: few in the gate, more in `make nightly`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import settings

NIGHTLY_TIMES = 12


def few(count: int) -> int:
    """Return ``count`` for `max_examples`, and in `make nightly` ``NIGHTLY_TIMES`` as many."""
    return count * (NIGHTLY_TIMES if settings.get_current_profile_name() == "nightly" else 1)


def first_in_gate(cases: Sequence[Any], count: int) -> list[Any]:
    """Return cases for `parametrize`: the first ones for the gate, the others for `make nightly`.

    A tuple is the values of several arguments.
    """
    return [*cases[:count], *(_at_night(case) for case in cases[count:])]


def _at_night(case: Any) -> Any:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.nightly])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly)
