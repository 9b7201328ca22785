import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import pytest
from pydantic import ValidationError

from dexorder_spark.config import SparkSettings
from dexorder_spark.records.fault import Fault, Moment

WAIT_SECONDS = 60


def test_the_nth_batch_with_rows_dies_at_its_moment_and_at_no_other() -> None:
    kills: list[int] = []
    fault = Fault.parse("die_after_report:2", lambda: kills.append(1))
    assert fault
    for batch in range(4):
        fault.passed(Moment.DECODED)
        fault.passed(Moment.ROWS_COMMITTED)
        assert len(kills) == (batch >= 2)
        fault.passed(Moment.REPORTED)
        assert len(kills) == (batch >= 1)


def test_with_a_fuse_only_batches_while_it_exists_count(tmp_path: Path) -> None:
    kills: list[bool] = []
    fuse = tmp_path / "fuse:1"
    fault = Fault.parse(SparkSettings(fault=f"die_before_report:1:{fuse}").fault, lambda: kills.append(fuse.exists()))
    assert fault
    fault.passed(Moment.ROWS_COMMITTED)
    assert kills == []
    fuse.touch()
    fault.passed(Moment.REPORTED)
    fault.passed(Moment.ROWS_COMMITTED)
    assert kills == [False], "removed before the kill, so the next driver lives"


def test_of_several_faults_each_has_its_own_moment_and_fuse(tmp_path: Path) -> None:
    kills: list[Moment] = []
    moments = (Moment.DECODED, Moment.ROWS_COMMITTED, Moment.REPORTED)
    text = ",".join(f"{moment.value}:1:{tmp_path / moment.value}" for moment in moments)
    passing = iter(moments)
    fault = Fault.parse(SparkSettings(fault=text).fault, lambda: kills.append(next(passing)))
    assert fault
    for lit in moments:
        (tmp_path / lit.value).touch()
        for moment in moments:
            before = len(kills)
            fault.passed(moment)
            assert len(kills) == before + (moment is lit)
    assert kills == list(moments)


def test_a_kill_during_the_commit_follows_the_next_metadata(tmp_path: Path) -> None:
    metadata = tmp_path / "a table" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "00000-first.metadata.json").touch()
    killed = Event()
    fault = Fault.parse("die_during_commit:2", killed.set)
    assert fault
    fault.commit_begins(metadata.parent.as_uri())
    (metadata / "00001-of-the-first-batch.metadata.json").touch()
    fault.passed(Moment.ROWS_COMMITTED)
    fault.commit_begins(metadata.parent.as_uri())
    (metadata / "snap-1.avro").touch()
    assert not killed.wait(0.1), "nothing new but a manifest list"
    (metadata / "00002-of-the-second.metadata.json").touch()
    assert killed.wait(WAIT_SECONDS)


def test_no_fault_is_the_default() -> None:
    assert Fault.parse(SparkSettings().fault, lambda: None) is None


@pytest.mark.parametrize(
    "text",
    [
        "die",
        "die_before_report",
        "die_before_report:0",
        "die_after_report:-1",
        "x:1",
        "die_before_commit:1,",
        "die_before_commit:1,die:1",
        "die_before_commit:1:a fuse, with a comma",
    ],
)
def test_a_misspelt_fault_is_refused_at_start(text: str) -> None:
    with pytest.raises(ValidationError, match="fault"):
        SparkSettings(fault=text)


def test_only_the_jvm_and_the_driver_get_sigkill() -> None:
    jvm, bystander = (subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2))
    driver = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from dexorder_spark.records.fault import kill_driver; kill_driver({jvm.pid}); print('alive')",
        ],
        capture_output=True,
    )
    assert (driver.returncode, driver.stdout) == (-signal.SIGKILL, b"")
    assert jvm.wait() == -signal.SIGKILL
    assert bystander.poll() is None
    bystander.communicate(b"\n")
    assert jvm.stdin
    jvm.stdin.close()
