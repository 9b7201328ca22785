"""``python -m services.udsource``: serve a Kafka topic as source.v1 until SIGTERM."""

from services.common.config import load_settings
from services.common.rpc.lifecycle import run
from services.udsource.config import UdsourceSettings
from services.udsource.server import main

if __name__ == "__main__":
    settings = load_settings(UdsourceSettings)
    run("udsource", settings, lambda: main(settings))
