"""Fixtures shared with the smoke tests."""

from tests.smoke.conftest import provider_servers as provider_servers
from tests.smoke.conftest import smoke_suite as smoke_suite
from tests.smoke.conftest import traces as traces
