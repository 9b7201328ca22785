"""Random histories of the delivery rules; `delivery_machine` has the properties that are checked."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.unit.services.gateway.events.delivery.delivery_machine import DeliveryMachine

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def test_random_histories() -> None:
    run_state_machine_as_test(
        DeliveryMachine,
        settings=settings(max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=SLOW),
    )


@pytest.mark.smoke
def test_many_random_histories() -> None:
    run_state_machine_as_test(
        DeliveryMachine,
        settings=settings(max_examples=150, stateful_step_count=50, deadline=None, suppress_health_check=SLOW),
    )
