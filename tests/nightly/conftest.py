"""Fixtures shared with the smoke tests."""

from tests.smoke.conftest import outside as outside
from tests.smoke.conftest import smoke_suite as smoke_suite
