"""Fixtures shared with the unit tests."""

from tests.unit.dexorder.conftest import fake as fake
from tests.unit.dexorder.conftest import state_home as state_home
from tests.unit.dexorder.conftest import tmp_dir as tmp_dir
from tests.unit.dexorder.conftest import warehouse as warehouse
