"""Fixtures shared with the unit tests."""

from tests.unit.dexorder.events.conftest import container as container
from tests.unit.dexorder.events.conftest import gateway as gateway
from tests.unit.dexorder.events.conftest import until as until
