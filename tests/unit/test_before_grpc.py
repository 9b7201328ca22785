"""The tests' own process."""

from __future__ import annotations

from grpc._cython import cygrpc  # type: ignore[attr-defined]


def test_grpc_does_not_prepare_for_forks() -> None:
    """Where it does, some children forked while gRPC is busy die; Spark's JVM is such a child."""
    assert not cygrpc.is_fork_support_enabled()
