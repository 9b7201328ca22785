"""Firings of a trigger that names a user: from the relay to the user's session, through a gateway that is killed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from dexorder_protos.dexorder.relay.v1 import trigger_service_pb2 as pb
from dexorder_relay.store.triggers import ALERT_PENDING
from tests.integration.events.container import until
from tests.integration.events.rig import Rig
from tests.integration.events.test_kills import locked
from tests.unit.services.relay.harness import TICKER, suite
from tests.unit.services.relay.triggers.test_trigger_rpc import SQL, event, register, report

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(180)]


async def test_each_firing_reaches_the_users_session_once_while_the_gateway_is_killed(own: Rig, tmp_path: Path) -> None:
    own.gateway.start()
    user = own.user()
    delivery = given.DeliverySpec(
        priority=given.CRITICAL, channels=[given.ChannelPreference(channel=given.WEB, only_if_active=False)]
    )
    folder = tmp_path / "relay"
    folder.mkdir()
    async with suite(folder, gateway=own.gateway.address) as s:
        answer = await register(s, "breakout", alert=pb.TriggerAlert(user_id=user, delivery=delivery))
        assert not answer.error_message
        async with own.session(user) as session:
            await report(s, [event("a", 1, "breakout")])
            heard = await session.take()
            assert (heard.event.event_id, heard.event.event_type) == ("a", given.ALERT_TRIGGERED)
            assert heard.event.delivery == delivery
            payload = json.loads(heard.event.payload)
            assert (payload["alert_id"], payload["symbol"], payload["condition"]) == ("breakout", TICKER, SQL)
            place = session.place(heard)
        await until(lambda: not pending(folder))  # the user may hear of it before the relay has the gateway's answer
        own.gateway.kill()
        await report(s, [event("b", 1, "breakout")])  # the gateway is down
        assert pending(folder) == 1
        own.gateway.start()
        with locked(own):  # it has the call, and can't commit
            await report(s, [event("c", 1, "breakout")])
            own.gateway.kill()
        own.gateway.start()
        await report(s, [event("a", 1, "breakout"), event("b", 1, "breakout")])  # the pipeline was killed, too
        async with own.session(user, cursor=place) as session:
            assert sorted([(await session.take()).event.event_id for _ in range(2)]) == ["b", "c"]
            await session.hears_nothing()
        assert sorted(each.event.event_id for each in await own.records(user)) == ["a", "b", "c"]
        await until(lambda: not pending(folder))


async def test_a_user_is_told_that_the_trigger_is_suspended_and_why(own: Rig, tmp_path: Path) -> None:
    own.gateway.start()
    user = own.user()
    delivery = given.DeliverySpec(
        priority=given.CRITICAL, channels=[given.ChannelPreference(channel=given.WEB, only_if_active=False)]
    )
    async with suite(tmp_path, gateway=own.gateway.address) as s, own.session(user) as session:
        await register(s, "costly", alert=pb.TriggerAlert(user_id=user, delivery=delivery))
        await report(s, [event("costly/1/suspended", 1, "costly", pb.TRIGGER_EVENT_KIND_SUSPENDED, reason="why")])
        heard = await session.take()
        assert heard.event.event_type == given.ALERT_DELETED
        payload = json.loads(heard.event.payload)
        assert (payload["alert_id"], payload["condition"], payload["reason"]) == ("costly", SQL, "why")


def pending(folder: Path) -> int:
    """Return the number of firings of which the gateway does not know, as the relay has it on disk."""
    with closing(sqlite3.connect(folder / "relay.db")) as database:
        found: int = database.execute(
            "SELECT count(*) FROM trigger_events WHERE alert = ?", (ALERT_PENDING,)
        ).fetchone()[0]
    return found
