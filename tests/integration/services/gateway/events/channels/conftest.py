"""Fixtures shared with the unit tests."""

from tests.unit.services.gateway.events.channels.conftest import all_channels as all_channels
from tests.unit.services.gateway.events.channels.conftest import channels as channels
from tests.unit.services.gateway.events.channels.conftest import providers as providers
from tests.unit.services.gateway.events.channels.conftest import settings as settings
