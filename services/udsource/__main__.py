"""``python -m dexorder.services.udsource``: serve a Kafka topic as source.v1 until SIGTERM."""

from dexorder.services.common.config import load_settings
from dexorder.services.common.rpc.lifecycle import run
from dexorder.services.udsource.config import UdsourceSettings
from dexorder.services.udsource.server import main

if __name__ == "__main__":
    settings = load_settings(UdsourceSettings)
    run("udsource", settings, lambda: main(settings))
