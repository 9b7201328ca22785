"""Fixtures every test can use."""

import os

# Spark's JVM is forked from this process, which has gRPC threads by then: gRPC's preparation for a fork can abort the
# child before it execs. As in spark/__main__.py; read when grpc is imported, so before anything else.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from hypothesis import settings

pytest_plugins = ["tests.fixtures_gateway", "tests.fixtures_kafka", "tests.fixtures_spark"]

# A slow machine is no failure.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
