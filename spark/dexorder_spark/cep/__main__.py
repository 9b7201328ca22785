"""``python -m dexorder_spark.cep``: the triggers' process, a child of the driver; it ends with its standard input."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

import structlog

from dexorder_common import logs
from dexorder_common.config import load_settings
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.storage.process_lock import Locked, take_lock
from dexorder_spark.cep.files import FolderFiles
from dexorder_spark.cep.journal import Journal
from dexorder_spark.cep.relay import TriggerRelay
from dexorder_spark.cep.runner import Runner, stored
from dexorder_spark.config import SparkSettings
from dexorder_spark.records.fault import Fault

log = structlog.get_logger(__name__)
_LOCK_SECONDS = 10.0


def end_with_parent(stop: threading.Event) -> None:
    """Stop when the parent closes the pipe, or dies, which closes it too. A batch that is cut off is repeated."""
    while os.read(0, 1):  # not sys.stdin: a thread must not hold its lock when the interpreter ends
        pass
    stop.set()
    time.sleep(_LOCK_SECONDS / 2)
    os._exit(1)


def main() -> None:
    """Run the process."""
    settings = load_settings(SparkSettings)
    logs.configure("triggers", level=settings.log_level, style=settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=end_with_parent, args=(stop,), name="parent", daemon=True).start()
    folder = settings.trigger_folder
    folder.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder / "lock")
    relay = TriggerRelay(settings.relay, stop)
    fault = Fault.parse(settings.fault, partial(os.kill, os.getpid(), signal.SIGKILL))
    try:
        rows = stored(load_settings(CatalogSettings))
        Runner(settings, Journal(FolderFiles(folder)), relay, rows, stop=stop, fault=fault).run()
    finally:
        relay.close()
        os.close(lock)


def _lock(path: os.PathLike[str]) -> int:
    """Take the journal's lock; a process before this one may need some seconds to end."""
    until_s = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return take_lock(path)  # type: ignore[arg-type]
        except Locked as error:
            if time.monotonic() > until_s:
                log.error("another process evaluates the triggers", path=str(path), pid=error.holder)
                sys.exit(1)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
