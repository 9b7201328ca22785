"""Fixtures shared with the unit tests."""

from tests.unit.services.ingestor.conftest import cheap_clients as cheap_clients
from tests.unit.services.ingestor.conftest import sim as sim
from tests.unit.services.ingestor.conftest import world_of as world_of
