"""Unexpected failures: answered to the caller, kept, and raised at the end; and the server-info file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.model.errors import NotAllowed, SuiteError, Unavailable
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.numaflow import FatalFailure, remove_server_info, write_server_info
from dexorder_udsource.server import serve
from dexorder_udsource.topic_reader import TopicReader, UdsourceMetrics
from tests.integration.services.udsource.client import SourceClient
from tests.integration.services.udsource.conftest import MakeSettings

MakeTopic = Callable[[int], str]


def test_first_failure_is_kept_and_reported_once() -> None:
    told: list[int] = []
    failure, first = FatalFailure(lambda: told.append(1)), ValueError("x 7")
    assert failure.note("source.v1.Source/ReadFn", first) == (
        "UDF_EXECUTION_ERROR(udsource): source.v1.Source/ReadFn raised ValueError: x 7; "
        "udsource ends with status 1 so that its container restarts"
    )
    failure.note("source.v1.Source/AckFn", KeyError("y"))
    assert failure.error is first and told == [1]


def test_text_fits_a_trailer() -> None:
    for character in "x", "\U0001f4a5":
        assert len(quote(FatalFailure().note("m", ValueError(character * 2_000)))) < 8 * 1024


async def test_background_task_is_guarded() -> None:
    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    failure, error = FatalFailure(), OSError("gone")
    await failure.guard("a task", lambda: work(None))
    assert failure.error is None
    await failure.guard("a task", lambda: work(error))
    assert failure.error is error


def bug(*_: Any) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.kafka
async def test_failed_handler_is_answered_and_raised_at_the_end(
    kafka_topic: MakeTopic, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicReader, "nack", bug)
    failure = FatalFailure()
    with pytest.raises(ZeroDivisionError):
        async with serve(make_settings(kafka_topic(1)), failure) as running:
            source = SourceClient(running.address)
            async with source.channel:
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await source.nack((0, 0))
    assert failed.value.code() == grpc.StatusCode.INTERNAL
    assert str(failed.value.details()).startswith("UDF_EXECUTION_ERROR(udsource): source.v1.Source/NackFn raised Zero")


def cut(*_: Any) -> Any:
    raise grpc.aio.UsageError("RPC already finished.")


@pytest.mark.kafka
@pytest.mark.parametrize("wire", [False, True], ids=["refused", "cut"])
async def test_refused_or_cut_request_is_not_a_failure(
    wire: bool, kafka_topic: MakeTopic, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wire:
        monkeypatch.setattr(TopicReader, "nack", cut)
    failure = FatalFailure()
    async with serve(make_settings(kafka_topic(1)), failure) as running:
        source = SourceClient(running.address)
        async with source.channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await source.nack((0, 7))
    assert failed.value.code() == (grpc.StatusCode.INTERNAL if wire else grpc.StatusCode.INVALID_ARGUMENT)
    assert failure.error is None


@pytest.mark.kafka
async def test_failed_task_is_raised_at_the_end(
    kafka_topic: MakeTopic, make_settings: MakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicReader, "note_topic_id", bug)  # only the monitor calls it
    stop: list[int] = []
    failure = FatalFailure(lambda: stop.append(1))
    with pytest.raises(ZeroDivisionError):
        async with serve(make_settings(kafka_topic(1)), failure) as running:
            source = SourceClient(running.address)
            async with source.channel:
                while not stop:
                    await source.pending()


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(Unavailable("fenced"), RuntimeError), (NotAllowed("the topic"), Unavailable)],
    ids=["for good", "passing"],
)
async def test_end_of_the_membership_is_a_failure_or_reported(failure: SuiteError, raised: type[Exception]) -> None:
    """The eot reports what may pass; a dataplane ignores it."""
    reader = TopicReader(UdsourceSettings(socket=None), UdsourceMetrics(CollectorRegistry()))
    reader._reading.ended(failure)
    await asyncio.sleep(0)
    with pytest.raises(raised, match=str(failure)):
        await reader.read(0, 10, 10.0)


# ---- the server-info file


def test_server_info_is_json_followed_by_the_marker(tmp_path: Path) -> None:
    path = tmp_path / "sourcer-server-info"
    write_server_info(path)
    assert path.read_bytes() == (
        b'{"protocol": "uds", "language": "python", "minimum_numaflow_version": "1.4.0-z", '
        b'"version": "0.14.0", "metadata": {}}U+005C__END__'
    )
    assert [p.name for p in tmp_path.iterdir()] == ["sourcer-server-info"]
    remove_server_info(path)
    remove_server_info(path)
    assert not path.exists()


def test_server_info_is_beside_the_socket_by_default() -> None:
    def file_of(**given: object) -> Path | None:
        return UdsourceSettings(**given).server_info_file  # type: ignore[arg-type]

    assert file_of(socket="/a/source.sock") == Path("/a/sourcer-server-info")
    assert file_of(socket="/a/source.sock", server_info="/b/info") == Path("/b/info")
    assert file_of(socket="", server_info="/b/info") is None
