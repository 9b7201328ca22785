"""``python -m dexorder.services.ingestor``: fetch history for the relay until SIGTERM."""

from dexorder.services.common.config import load_settings
from dexorder.services.common.rpc.lifecycle import run
from dexorder.services.ingestor.config import IngestorSettings
from dexorder.services.ingestor.server import serve

if __name__ == "__main__":
    settings = load_settings(IngestorSettings)
    run("ingestor", settings, lambda: serve(settings))
