import re
import shlex
import zipfile
from pathlib import Path

import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import Conflict
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.package import write_packages
from dexorder_spark.runtime.session import build_session, session_conf


def test_only_a_local_session_is_tied_to_loopback() -> None:
    local = session_conf(SparkSettings(), "/s")
    remote = session_conf(SparkSettings(master="spark://host:7077"), "/s")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in remote
    assert local["spark.sql.session.timeZone"] == "UTC"


def test_spark_hides_the_secrets_of_every_kind_of_catalog() -> None:
    hidden = re.compile(session_conf(SparkSettings(), "/s")["spark.redaction.regex"])
    for name in ("s3.access-key-id", "s3.secret-access-key", "jdbc.password", "token", "credential"):
        assert hidden.search(f"spark.sql.catalog.dexorder.{name}"), name


def test_executors_elsewhere_get_our_packages(tmp_path: Path) -> None:
    names = zipfile.ZipFile(write_packages(tmp_path / "packages.zip")).namelist()
    assert {
        "dexorder_spark/source/udsource.py",
        "dexorder_common/kafka/page_record.py",
        "dexorder_protos/source/v1/source_pb2.py",
    } <= {*names}


def test_a_folder_may_have_a_space_in_its_name() -> None:
    options = session_conf(SparkSettings(), "/a folder/s")["spark.driver.extraJavaOptions"]
    assert "-Dderby.system.home=/a folder/s" in shlex.split(options)  # Spark splits them by the same rules


def test_a_user_without_a_name_is_refused_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexorder_spark.runtime.session.os.getuid", lambda: 2**31 - 7)
    with pytest.raises(Conflict, match=f"user {2**31 - 7} has no entry in /etc/passwd"):
        build_session(SparkSettings(), CatalogSettings())
