"""Rule that says who may produce to a topic. Pure."""

from __future__ import annotations

from dexorder_common.model.datasets import topics
from dexorder_common.model.errors import NotAllowed
from dexorder_common.rpc.identity import Caller, Role

PIPELINE_TOPICS = frozenset(topics())
"""Topics whose records become rows of the tables, in whichever cluster."""
PRODUCERS = (Role.INGESTOR, Role.ADMIN)


def check_produce(caller: Caller | None, topic: str) -> None:
    """Raise NotAllowed unless the caller may produce to a topic; None as the caller means that identity is off."""
    if caller is not None and topic in PIPELINE_TOPICS and caller.role not in PRODUCERS:
        raise NotAllowed(
            f"client_id {caller.client_id!r} has the role {caller.role}; "
            f"topic {topic} takes records of {' or '.join(sorted(PRODUCERS))}"
        )
