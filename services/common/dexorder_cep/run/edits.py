"""Edits: a trigger with another text or other parameters takes the place and the state of another one. Pure.

``dexorder_cep.compile.edits`` says which edits keep the state. Windows, values of OVER and unfinished matches are taken
over as they are. The new condition is evaluated on the newest row, so a condition that is already true does not fire
before it was false, as if it had been there from the start. Sent events stay valid: a cooldown continues from the last
event, with its new length.
"""

from __future__ import annotations

from dexorder_cep.compile.trigger import CompiledTrigger
from dexorder_cep.run.awake import Run
from dexorder_cep.run.delivery import Registration
from dexorder_cep.run.running import RunningRun
from dexorder_cep.run.runs import DerivedRun, MatchRun, PlainRun
from dexorder_cep.run.stream import Row, Stream
from dexorder_cep.run.stream_runs import StreamRuns, new_run
from dexorder_common.model.times import SECOND_NS


def change(registration: Registration, compiled: CompiledTrigger, revision: int) -> None:
    """Give a registration another text and other parameters. Its runs are still of the old text; replace them."""
    longer_ns = compiled.parameters.cooldown_ns - registration.kind.parameters.cooldown_ns
    for sent in registration.delivered.values():
        sent.until_ns += longer_ns if sent.until_ns else 0
    for withheld in registration.withheld.values():
        withheld.clear()  # it stays paused; these are outcomes of the text before
    registration.take(compiled)
    registration.revision = revision
    registration.account.release_all()


def replace_runs(registration: Registration, on_stream: StreamRuns) -> None:
    """Replace the runs of a changed trigger on a stream, with their state.

    Raises:
        Exception: The new condition fails on the newest row.
    """
    name = registration.trigger_id
    stream = on_stream.stream
    old = on_stream.find(name)
    if old is not None:
        run = new_run(registration, stream.ticker)
        _take_over(run, old, stream, _newest(registration, stream))
        on_stream.add(registration, run)
    for candles in on_stream.running.values():
        if name in candles.runs:
            running = RunningRun(registration.compiled, stream.ticker, registration.account)
            running.take_over(candles.runs[name])
            candles.runs[name] = running


def _take_over(run: Run, old: Run, stream: Stream, newest: tuple[Row, bool] | None) -> None:
    match run, old:
        case PlainRun(), PlainRun():
            run.take_over(old.latch, stream, newest)
        case DerivedRun(), DerivedRun():
            run.take_over(old)
        case MatchRun(), MatchRun():
            if (state := old.dump()) is not None:
                run.restore(state)
        case _:
            raise TypeError(f"{type(run).__name__} can't take over the state of {type(old).__name__}")


def _newest(registration: Registration, stream: Stream) -> tuple[Row, bool] | None:
    """Return the newest row of a stream, and whether a trigger has seen it silently; None if it has seen none."""
    if not stream.rows:
        return None
    row = stream.rows[-1]
    silent = registration.knew(stream.ticker, row[0] + registration.series_period * SECOND_NS, row[1])
    return None if silent and not registration.kind.parameters.warmup else (row, silent)
