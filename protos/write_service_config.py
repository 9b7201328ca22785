"""Generation of protos/service_config.json, gRPC's service config of our services; ``--check`` fails if it is stale.

Clients in any language give it to their channel: a call waits for a server that restarts, and is repeated if it may be.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import MethodOptions

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS / "service_config.json"
RETRIES = {
    "maxAttempts": 5,
    "initialBackoff": "0.2s",
    "maxBackoff": "5s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
"""gRPC makes at most five attempts, whatever is written here. A call that waits for a server uses none of them."""
CALL_TIMEOUT = "60s"


def service_config() -> dict[str, Any]:
    """Return the config: every call waits for a server, and those that may be repeated are."""
    repeated, others, streams = list[dict[str, str]](), list[dict[str, str]](), list[dict[str, str]]()
    for path in sorted((PROTOS / "dexorder").rglob("*_service.proto")):
        module = importlib.import_module(f"dexorder_protos.{str(path.relative_to(PROTOS))[:-6].replace('/', '.')}_pb2")
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                name = {"service": service.full_name, "method": method.name}
                if method.client_streaming or method.server_streaming:
                    streams.append(name)
                elif method.GetOptions().idempotency_level == MethodOptions.IDEMPOTENCY_UNKNOWN:
                    others.append(name)
                else:
                    repeated.append(name)
    return {
        "methodConfig": [
            {"name": repeated, "waitForReady": True, "timeout": CALL_TIMEOUT, "retryPolicy": RETRIES},
            {"name": others, "waitForReady": True, "timeout": CALL_TIMEOUT},
            {"name": streams, "waitForReady": True},
        ],
        "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.1},
    }


def main() -> int:
    """Write the file, or check it; return the exit status."""
    text = json.dumps(service_config(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != text:
            print("protos/service_config.json is stale, run `python protos/write_service_config.py`")
            return 1
        return 0
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
