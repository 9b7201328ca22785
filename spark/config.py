"""Settings of the Spark driver. The catalog's are ``DEXORDER_CATALOG_<NAME>`` (services/common/lake/catalog.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from services.common.config import ServiceSettings
from spark.maintenance.policy import Policy
from spark.pipeline.fault import FAULT_PATTERN

_DAY_NS = 24 * 3_600 * 1_000_000_000


class MaintenanceSettings(BaseSettings):
    """``DEXORDER_SPARK_MAINTENANCE_<NAME>``: the tables' care (docs/spark.md)."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_prefix="DEXORDER_SPARK_MAINTENANCE_")

    interval_seconds: float = Field(default=60.0, ge=0)
    """Pause between two looks at the tables; 0 leaves them alone until someone asks."""
    quiet_seconds: float = Field(default=2.0, ge=0)
    """Time without a batch that is waited for before work begins ..."""
    max_wait_seconds: float = Field(default=120.0, ge=0)
    """... but no longer than this: under constant load, steps go between the batches."""
    small_files: int = Field(default=16, ge=2)
    """Small data files in one partition that make its compaction due."""
    small_file_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Bytes below which a data file is small."""
    target_file_bytes: int = Field(default=128 * 1024 * 1024, ge=1)
    """Bytes of a compacted file."""
    delete_files: int = Field(default=8, ge=1)
    """Delete files (of MERGE) in one partition that make it due for applying them."""
    step_bytes: int = Field(default=256 * 1024 * 1024, ge=1)
    """About the most bytes rewritten in one step, for which a batch may have to wait."""
    manifests: int = Field(default=64, ge=2)
    """Manifests of a table that make merging them due."""
    coverage_rows: int = Field(default=500, ge=0)
    """Lines of trading.coverage that must come, and must go by merging, to make merging them due; 0 for never."""
    coverage_grace_seconds: float = Field(default=600.0, ge=0)
    """Age at which a line of trading.coverage may be merged with others."""
    snapshot_days: float = Field(default=7.0, gt=0)
    """Days that snapshots of the candles are kept; those of the other tables an hour."""
    max_snapshots: int = Field(default=1_000, ge=1)
    """Beyond so many snapshots of a table the oldest go sooner, though not within an hour."""
    orphan_days: float = Field(default=3.0, ge=0)
    """Age in days at which files that no snapshot refers to are removed, once a day; at least 1, or 0 for never."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.small_file_bytes >= self.target_file_bytes:
            raise ValueError("small_file_bytes must be below target_file_bytes")
        if 0 < self.orphan_days < 1:
            raise ValueError("orphan_days below 1 could hit files that are being written; 0 turns it off")
        return self

    def policy(self) -> Policy:
        """What the rules need of it."""
        return Policy(
            small_files=self.small_files,
            small_file_bytes=self.small_file_bytes,
            target_file_bytes=self.target_file_bytes,
            delete_files=self.delete_files,
            step_bytes=self.step_bytes,
            manifests=self.manifests,
            snapshot_ns=round(self.snapshot_days * _DAY_NS),
            max_snapshots=self.max_snapshots,
            coverage_rows=self.coverage_rows,
            coverage_grace_ns=round(self.coverage_grace_seconds * 1_000_000_000),
        )


class SparkSettings(ServiceSettings):
    """``DEXORDER_SPARK_<NAME>``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, env_prefix="DEXORDER_SPARK_")

    listen: str = "127.0.0.1:50055"
    """host:port of the gRPC server: health, MaintenanceService, reflection and channelz."""
    metrics_listen: str = "127.0.0.1:9468"
    """host:port of the Prometheus endpoint; empty serves none."""
    source: str = "127.0.0.1:50052"
    """host:port or unix: address of the source.v1 server the records come from; executors connect to it too."""
    relay: str = "127.0.0.1:50051"
    """host:port of the relay's PipelineService."""
    checkpoint: str = "checkpoint"
    """Folder (a path or a URI of Hadoop's) of the query's checkpoint."""
    jars: Path | None = None
    """Folder of the jars; default those in the set-up's cache that the catalog needs. An empty folder is fine where
    the cluster has them already."""
    master: str = "local[2]"
    """Spark master; empty under ``spark-submit``, which then gives master, jars, Java options and our packages."""
    driver_memory: str = "1g"
    """Heap of the driver's JVM; the rest of a record's way is outside of it."""
    shuffle_partitions: int = Field(default=2, ge=1)
    """Partitions of a shuffle; only MERGE and de-duplication shuffle."""
    max_records_per_batch: int = Field(default=600, ge=1)
    """Most records (pages of up to 1,000 candles) in one micro-batch, over all partitions."""
    poll_ms: int = Field(default=100, ge=1)
    """Milliseconds between two looks at an idle source."""
    warm_up: bool = True
    """Run a tiny batch through throw-away tables before the first real one, unless records wait already."""
    restarts: int = Field(default=60, ge=0)
    """Times in a row that a failed query is restarted, at most 5 s apart, before the process gives up with a non-zero
    status: a full disk or a busy catalog is waited out in the warm session."""
    report_tries: int = Field(default=10, ge=1)
    """Tries of one report without an OK of the relay (about one a second) after which health says NOT_SERVING; the
    tries go on."""
    fault: str = Field(default="", pattern=FAULT_PATTERN)
    """For crash tests only: where the driver kills itself (spark/pipeline/fault.py)."""

    @property
    def is_submitted(self) -> bool:
        """Whether ``spark-submit`` started the JVM and this process."""
        return not self.master

    @property
    def is_local(self) -> bool:
        """Whether executors run in the driver's own JVM and see its files."""
        return self.master.startswith("local")
