"""``python -m dexorder_gateway``: serve KafkaPixy, and user events if they have an outbox, until SIGTERM.

Kafka-Pixy's own flags are accepted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from dexorder_common.config import BadSettings, load_settings
from dexorder_common.rpc.lifecycle import run
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.pixy_flags import PixyFlags, read_flags
from dexorder_gateway.server import main


def _flags() -> PixyFlags:
    try:
        flags = read_flags(sys.argv[1:])
        if flags.pid_file:
            Path(flags.pid_file).write_text(str(os.getpid()))
    except BadSettings as error:
        raise SystemExit(str(error)) from None
    except OSError as error:
        raise SystemExit(f"-pidFile: {flags.pid_file} can't be written: {error.strerror}") from None
    return flags


if __name__ == "__main__":
    settings, events = load_settings(GatewaySettings, pixy_flags=_flags()), load_settings(EventsSettings)
    run("gateway", settings, lambda: main(settings, events))
