"""Settings of the Spark driver. The catalog's are ``DEXORDER_CATALOG_<NAME>`` (services/common/catalog.py)."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from services.common.config import ServiceSettings
from spark.fault import FAULT_PATTERN


class SparkSettings(ServiceSettings):
    """``DEXORDER_SPARK_<NAME>``."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", populate_by_name=True, env_prefix="DEXORDER_SPARK_")

    listen: str = "127.0.0.1:50055"
    """host:port of the gRPC server; it serves health, reflection and channelz only."""
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
    """Spark master; ``spark-submit`` overrides it when this is empty."""
    driver_memory: str = "1g"
    """Heap of the driver's JVM; the rest of a record's way is outside of it."""
    shuffle_partitions: int = Field(default=2, ge=1)
    """Partitions of a shuffle; only MERGE and de-duplication shuffle."""
    max_records_per_batch: int = Field(default=600, ge=1)
    """Most records (pages of up to 1,000 candles) in one micro-batch, over all partitions."""
    poll_ms: int = Field(default=100, ge=1)
    """Milliseconds between two looks at an idle source."""
    warm_up: bool = True
    """Run two tiny batches through throw-away tables before the first real one."""
    restarts: int = Field(default=5, ge=0)
    """Times in a row that a failed query is restarted before the process gives up with a non-zero status."""
    fault: str = Field(default="", pattern=FAULT_PATTERN)
    """For crash tests only: where the driver kills itself (spark/fault.py)."""

    @property
    def is_local(self) -> bool:
        """Whether executors run in the driver's own JVM and see its files."""
        return self.master.startswith("local")
