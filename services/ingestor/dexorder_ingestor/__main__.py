"""``python -m dexorder_ingestor``: fetch history for the relay until SIGTERM."""

from dexorder_common.config import load_settings
from dexorder_common.rpc.lifecycle import run
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.server import serve

if __name__ == "__main__":
    settings = load_settings(IngestorSettings)
    run("ingestor", settings, lambda: serve(settings))
