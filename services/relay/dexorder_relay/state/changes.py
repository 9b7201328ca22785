"""Changes of the state that must survive a restart. Pure: the rules declare them, and the store writes them.

A rule changes the state and appends what it changed. The caller commits the list before its next await, because a
change refers to the values in memory. The changes of one list become durable together, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.history import HistoryRequest, IssuedDispatch, Outcome, Progress
from dexorder_common.model.instrument import InstrumentList, Series
from dexorder_common.model.realtime import StartedSubscription
from dexorder_common.model.time_range import Diff, TimeRange
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state.job import Job
from dexorder_relay.state.provisional import AbsenceChange
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, SeriesPosition
from dexorder_relay.state.request import LiveRequest


class StateChange:
    """Base of all changes."""


@dataclass(frozen=True, slots=True)
class ValueStored(StateChange):
    """A new value, or one that takes the place of the value with its key. Ranges and positions are not part of a job.

    A history part is stored again for another subscription. A retraction is stored when coverage and jobs reflect it.
    """

    value: Job | RealtimeJob | StartedSubscription | HistoryPart | Retraction | UdfRegistration


@dataclass(frozen=True, slots=True)
class RequestAccepted(StateChange):
    """A new request."""

    live: LiveRequest


@dataclass(frozen=True, slots=True)
class RequestChanged(StateChange):
    """A new state or planned end of a request."""

    live: LiveRequest


@dataclass(frozen=True, slots=True)
class RequestEnded(StateChange):
    """The outcome of a request, which is announced on its topics."""

    request: HistoryRequest
    outcome: Outcome
    progress: Progress


@dataclass(frozen=True, slots=True)
class RequestRevised(StateChange):
    """Candles that turned up, announced on the ticker's topic and to clients that were told of their absence."""

    request: HistoryRequest
    spans: Sequence[TimeRange]


@dataclass(frozen=True, slots=True)
class RequestAttached(StateChange):
    """A request that waits for a job."""

    request_id: str
    job_id: int


@dataclass(frozen=True, slots=True)
class JobForgotten(StateChange):
    """A job that no request waits for. Its dispatches stay known, because their pages may still arrive."""

    job_id: int


@dataclass(frozen=True, slots=True)
class DispatchIssued(StateChange):
    """A dispatch of a job of any kind, before it is sent."""

    dispatch: IssuedDispatch
    job_id: int
    issued_ns: int


@dataclass(frozen=True, slots=True)
class DispatchEnded(StateChange):
    """The end of a realtime dispatch. Its retention starts now, because its last records are as young as that."""

    dispatch_id: str
    ended_ns: int


@dataclass(frozen=True, slots=True)
class RangesChanged(StateChange):
    """A change of one range set of a series' coverage, or of a job if ``owner`` is a job's id."""

    owner: Series | int
    kind: str
    diff: Diff


@dataclass(frozen=True, slots=True)
class AbsencesChanged(StateChange):
    """A change of the provisional ranges of a series."""

    series: Series
    change: AbsenceChange


@dataclass(frozen=True, slots=True)
class CoverageRead(StateChange):
    """The ranges reflect the coverage table as it was at this time."""

    read_ns: int


@dataclass(frozen=True, slots=True)
class InstrumentsReported(StateChange):
    """The instruments of a venue, unless the stored ones are newer."""

    listed: InstrumentList


@dataclass(frozen=True, slots=True)
class SubscriptionStopped(StateChange):
    """The end of a subscription. History that was not requested for it yet is not requested any more."""

    subscription_id: str
    stopped_ns: int


@dataclass(frozen=True, slots=True)
class RealtimeJobForgotten(StateChange):
    """A realtime job without subscriptions. Its dispatches stay known, because their records may still arrive."""

    job_id: int


@dataclass(frozen=True, slots=True)
class PositionsReplaced(StateChange):
    """All positions of a realtime job."""

    job: RealtimeJob


@dataclass(frozen=True, slots=True)
class PositionChanged(StateChange):
    """The position of one series of a realtime job."""

    job_id: int
    period_seconds: int
    position: SeriesPosition


@dataclass(frozen=True, slots=True)
class HistoryPartSubmitted(StateChange):
    """The request of such a range was accepted."""

    request_id: str


Changes: TypeAlias = list[StateChange]
