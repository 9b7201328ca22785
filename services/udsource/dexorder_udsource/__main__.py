"""``python -m dexorder_udsource``: serve a Kafka topic as source.v1 until SIGTERM."""

from dexorder_common.config import load_settings
from dexorder_common.rpc.lifecycle import run
from dexorder_udsource.config import UdsourceSettings
from dexorder_udsource.server import main

if __name__ == "__main__":
    settings = load_settings(UdsourceSettings)
    run("udsource", settings, lambda: main(settings))
