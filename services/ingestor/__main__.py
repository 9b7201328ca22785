"""``python -m services.ingestor``: fetch history for the relay until SIGTERM."""

from services.common.config import load_settings
from services.common.rpc.lifecycle import run
from services.ingestor.config import IngestorSettings
from services.ingestor.server import serve

if __name__ == "__main__":
    settings = load_settings(IngestorSettings)
    run("ingestor", settings, lambda: serve(settings))
