"""Settings of the Spark driver. Those of the catalog are in dexorder_common/lake/catalog.py."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dexorder_common.model.datasets import DATASETS
from dexorder_common.rpc.settings import ServiceSettings

_MOMENTS = "before_commit|during_commit|before_report|after_report|before_journal|after_journal|during_publish"
_ONE = rf"die_({_MOMENTS}):[1-9][0-9]*(:[^,]+)?"
_FAULTS = rf"^(|{_ONE}(,{_ONE})*)$"
TABLES = tuple(each.table.rpartition(".")[2] for each in DATASETS)
"""Tables that a driver can fill."""


class MaintenanceSettings(BaseSettings):
    """``DEXORDER_SPARK_MAINTENANCE_<NAME>``: maintenance of the tables (docs/spark.md)."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="DEXORDER_SPARK_MAINTENANCE_")

    interval_seconds: float = Field(default=60.0, ge=0)
    """Seconds between two inspections of the tables; 0 disables automatic maintenance."""
    quiet_seconds: float = Field(default=2.0, ge=0)
    """Seconds without a batch before maintenance starts ..."""
    max_wait_seconds: float = Field(default=120.0, ge=0)
    """... but it waits no longer than this: under constant load, steps run between the batches."""
    small_files: int = Field(default=16, ge=2)
    """Number of small data files in a partition that makes its compaction due."""
    small_file_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Bytes below which a data file is small."""
    merge_seconds: float = Field(default=4.0, ge=0)
    """Seconds between two merges of the smallest files of each partition of the tables other than ``trading.ohlc``; 0
    for none."""
    merge_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Bytes of the files that one merge makes one file of at most; the driver holds their rows in memory."""
    target_file_bytes: int = Field(default=128 * 1024 * 1024, ge=1)
    """Target size of a compacted file in bytes."""
    delete_files: int = Field(default=8, ge=1)
    """Number of delete files (written by MERGE) in a partition that makes applying them due."""
    step_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    """Approximate limit of bytes rewritten in one step, for which a batch may have to wait."""
    manifests: int = Field(default=64, ge=2)
    """Number of manifests of a table that makes merging them due."""
    snapshot_days: float = Field(default=7.0, gt=0)
    """Days for which a snapshot that a notification names is kept."""
    max_named_snapshots: int = Field(default=1_000, ge=1, le=10_000)
    """Number of such snapshots above which those that were named first are kept no longer than others."""
    snapshot_hours: float = Field(default=1.0, ge=0)
    """Hours for which any other snapshot, and its files, are kept after it was replaced: they may be in use."""
    max_snapshots: int = Field(default=100, ge=1)
    """Number of others above which the oldest expire earlier, ten minutes after they were replaced at least. Their data
    files are kept for the hours."""
    orphan_days: float = Field(default=3.0, ge=0)
    """Age in days at which unreferenced files are removed, once a day; at least 1, or 0 for never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.small_file_bytes >= self.target_file_bytes:
            raise ValueError("small_file_bytes must be below target_file_bytes")
        if 0 < self.orphan_days < 1:
            raise ValueError("orphan_days must be 0 (never) or at least 1: younger files may still be in use")
        return self


class SparkSettings(ServiceSettings):
    """``DEXORDER_SPARK_<NAME>``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, env_prefix="DEXORDER_SPARK_")

    listen: str = "127.0.0.1:50055"
    """host:port of the gRPC server: health, MaintenanceService, reflection and channelz."""
    metrics_listen: str = "127.0.0.1:9468"
    """host:port of the Prometheus endpoint; empty serves none."""
    source: str = "127.0.0.1:50052"
    """host:port or unix: address of the source.v1 server; executors connect to it too."""
    relay: str = "127.0.0.1:50051"
    """host:port of the relay's PipelineService."""
    jars: Path | None = None
    """Folder of the jars; by default those that the catalog needs, in the cache of ``make setup``. An empty folder is
    right for a cluster that has them."""
    master: str = "local[*]"
    """Spark master, by default with a task for each core of the machine; empty under ``spark-submit``, which provides
    master, jars, Java options and packages itself."""
    driver_memory: str = "1g"
    """Heap of the driver's JVM. Records are processed outside of it."""
    shuffle_partitions: int = Field(default=2, ge=1)
    """Partitions of a shuffle; only MERGE and deduplication shuffle."""
    max_records_per_batch: int = Field(default=600, ge=1)
    """Largest number of records (pages of up to 1,000 candles, ticker snapshots) in a micro-batch, over all
    partitions."""
    poll_ms: int = Field(default=100, ge=1)
    """Milliseconds between two polls of an idle source."""
    max_trade_records_per_batch: int = Field(default=6_000, ge=1)
    """Largest number of records of trades in a micro-batch; a record has the trades of a tenth of a second."""
    batch_seconds: float = Field(default=2.0, ge=0)
    """Longest time between the starts of two micro-batches of trades or ticker snapshots, seconds; while batches are
    quick, down to half of it. A smaller value delays trades less and costs more processor time and small files
    (docs/spark.md#batch-interval)."""
    candle_batch_seconds: float = Field(default=1.0, ge=0)
    """Seconds for which a micro-batch of candles collects pages at most while many come. It starts sooner if no page
    follows, and at once if the batch before had few."""
    tables: str = ",".join(TABLES)
    """Tables to fill, separated by commas; each has its own query and its own Kafka topic. Leave out one
    without a topic."""
    trigger_folder: Path = Path("triggers")
    """Folder of the triggers' journal, on a volume that outlives the driver. Without it triggers start again
    with the rows of the tables."""
    trigger_batch_seconds: float = Field(default=0.1, ge=0)
    """Seconds between the starts of two micro-batches of triggers."""
    trigger_processes: int = Field(default=1, ge=1, le=64)
    """Processes that evaluate triggers, each those of a part of the tickers. With 1, no extra process is started. It
    may be changed at any restart: events, their ids and their order do not depend on it."""
    restarts: int = Field(default=60, ge=0)
    """Restarts of a failed query in a row, at most 5 s apart, before the process exits with a non-zero status. So a
    full disk or a busy catalog does not cost the warm session."""
    report_attempts: int = Field(default=10, ge=1)
    """Failed attempts of one report (about one per second) after which health is NOT_SERVING; the attempts
    continue."""
    udfs: Path | None = None
    """YAML file of the users' functions (UDFs) on the stream (docs/udf.md). Calls may start those that it declares."""
    udf_any_command: bool = False
    """Let calls of the relay run any command on this host as a UDF, not only those that the file declares."""
    udf_frame_limit_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Largest message of a UDF, and largest state of its stage, in bytes."""
    gateway: str = "127.0.0.1:50053"
    """host:port of the gateway, for UDFs whose output also goes to a topic or a user."""
    fault: str = Field(default="", pattern=_FAULTS)
    """For crash tests only: the point at which the driver kills itself (dexorder_spark/records/fault.py)."""

    @field_validator("tables")
    @classmethod
    def _known(cls, given: str) -> str:
        names = given.split(",")
        if not set(names) <= {*TABLES} or len({*names}) < len(names):
            raise ValueError(f"{given!r} is not a list of some of {', '.join(TABLES)}")
        return given

    @property
    def is_submitted(self) -> bool:
        """True if ``spark-submit`` started the JVM and this process."""
        return not self.master

    @property
    def is_local(self) -> bool:
        """True if executors run in the driver's own JVM and see its files."""
        return self.master.startswith("local")
