"""The publisher library loads neither the gateway's code nor gRPC."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dexorder.events

_BARRED = """
import importlib, importlib.abc, pkgutil, sys

class Barred(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "grpc" or (name + ".").startswith("dexorder_gateway."):
            raise ImportError(f"{name} is barred")
        return None

sys.meta_path.insert(0, Barred())
import dexorder.events
loaded = ["dexorder.events"]
for module in pkgutil.iter_modules(dexorder.events.__path__, "dexorder.events."):
    if module.name != "dexorder.events.gateway_client":  # calls of the gateway over gRPC, for the command line
        importlib.import_module(module.name)
        loaded.append(module.name)
assert not [name for name in sys.modules if name == "grpc" or name.startswith("dexorder_gateway")]
print(len(loaded))
"""


def test_the_publisher_loads_neither_the_gateway_nor_grpc() -> None:
    ran = subprocess.run([sys.executable, "-c", _BARRED], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 5


def test_no_module_of_the_library_names_the_gateways_code() -> None:
    files = sorted(Path(dexorder.events.__file__).parent.glob("*.py"))
    assert files and not [file.name for file in files if "dexorder_gateway" in file.read_text()]
