"""A short life of the whole broker; `make soak` lives through 100,000 steps."""

from __future__ import annotations

from hypothesis import settings

from tests.unit.services.relay.board_machine import BoardMachine

BoardMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBroker = BoardMachine.TestCase
