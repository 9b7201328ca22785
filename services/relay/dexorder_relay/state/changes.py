"""Changes of the state that must survive a restart. Pure: the rules declare them, and the store writes them.

A rule changes the state and appends each change to a list. The caller commits the list before its next await, because a
change refers to the values in memory. The changes of one list become durable together, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from dexorder_common.lake.coverage import Retraction
from dexorder_common.model.history import HistoryRequest, IssuedDispatch, Outcome, Progress
from dexorder_common.model.instrument import InstrumentList, Series
from dexorder_common.model.realtime import Knowledge, StartedSubscription
from dexorder_common.model.time_range import Diff, TimeRange
from dexorder_common.model.udf import UdfRegistration
from dexorder_relay.state.job import Job
from dexorder_relay.state.provisional import AbsenceChange
from dexorder_relay.state.realtime_job import HistoryPart, RealtimeJob, SeriesPosition
from dexorder_relay.state.request import LiveRequest


class ValueStored(NamedTuple):
    """A new value, or one that takes the place of the value with its key. Ranges and positions are not part of a job.

    A history part is stored again for another subscription. A retraction is stored when coverage and jobs reflect it.
    """

    value: Job | RealtimeJob | StartedSubscription | HistoryPart | Retraction | UdfRegistration


class RequestAccepted(NamedTuple):
    """A new request."""

    live: LiveRequest


class RequestChanged(NamedTuple):
    """A new state or planned end of a request."""

    live: LiveRequest


class RequestEnded(NamedTuple):
    """The outcome of a request, which is announced on its topics."""

    request: HistoryRequest
    outcome: Outcome
    progress: Progress


class RequestRevised(NamedTuple):
    """Candles that turned up, announced on the ticker's topic and to clients that have seen their absence."""

    request: HistoryRequest
    spans: Sequence[TimeRange]


class RequestAttached(NamedTuple):
    """A request that waits for a job."""

    request_id: str
    job_id: int


class JobForgotten(NamedTuple):
    """A job that no request waits for. Its dispatches stay known, because their pages may still arrive."""

    job_id: int


class DispatchIssued(NamedTuple):
    """A dispatch of a job of any kind, before it is sent."""

    dispatch: IssuedDispatch
    job_id: int
    issued_ns: int


class DispatchEnded(NamedTuple):
    """The end of a realtime dispatch. Its retention starts now, because its last records are as young as that."""

    dispatch_id: str
    ended_ns: int


class RangesChanged(NamedTuple):
    """A change of one range set of a series' coverage, or of a job if ``owner`` is a job's id."""

    owner: Series | int
    kind: str
    diff: Diff


class AbsencesChanged(NamedTuple):
    """A change of the provisional ranges of a series."""

    series: Series
    change: AbsenceChange


class CoverageRead(NamedTuple):
    """The ranges reflect the coverage table as it was at this time."""

    read_ns: int


class InstrumentsReported(NamedTuple):
    """The instruments of a venue, unless the stored ones are newer."""

    listed: InstrumentList


class SubscriptionStopped(NamedTuple):
    """The end of a subscription. History that was not requested for it yet is not requested any more."""

    subscription_id: str
    stopped_ns: int


class RealtimeJobForgotten(NamedTuple):
    """A realtime job without subscriptions. Its dispatches stay known, because their records may still arrive."""

    job_id: int


class PositionsReplaced(NamedTuple):
    """All positions of a realtime job."""

    job: RealtimeJob


class PositionChanged(NamedTuple):
    """The position of one series of a realtime job."""

    job_id: int
    period_seconds: int
    position: SeriesPosition


class KnowledgeChanged(NamedTuple):
    """Knowledge of a realtime job that is not in its records."""

    job_id: int
    knowledge: Knowledge


class HistoryPartSubmitted(NamedTuple):
    """The request of such a range was accepted."""

    request_id: str


StateChange: TypeAlias = (
    ValueStored
    | RequestAccepted
    | RequestChanged
    | RequestEnded
    | RequestRevised
    | RequestAttached
    | JobForgotten
    | DispatchIssued
    | DispatchEnded
    | RangesChanged
    | AbsencesChanged
    | CoverageRead
    | InstrumentsReported
    | SubscriptionStopped
    | RealtimeJobForgotten
    | PositionsReplaced
    | PositionChanged
    | KnowledgeChanged
    | HistoryPartSubmitted
)
Changes: TypeAlias = list[StateChange]
