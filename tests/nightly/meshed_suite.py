"""A running suite whose parts stand behind sidecars; all of them can be killed, frozen, drained and replaced.

python -m tests.nightly.meshed_suite --dir DIR --base-port N --envoy COMMAND --profile NAME
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dexorder.supervisor import prepare
from dexorder.supervisor.plan import Ports, SuiteOptions
from dexorder.supervisor.suite import Reporter, run_parts
from tests.nightly.envoy import drain
from tests.nightly.mesh_plan import DESK, PODS, PORTS, PROFILES, MeshPlan, sidecar
from tests.rig.processes import free_block, until
from tests.rig.suite import Suite, running_suite_at

READY_SECONDS = 300
FROZEN_SECONDS = 3.0


@dataclass
class MeshedSuite(Suite):
    """The suite, as the workload ``desk`` reaches it: through its own sidecar and those of the parts."""

    mesh: MeshPlan | None = None

    @property
    def relay(self) -> str:
        return self.reached("relay")

    def reached(self, port: str) -> str:
        """Return where the desk's sidecar takes calls to a port."""
        assert self.mesh is not None
        return self.mesh.address(DESK, port)

    def killed(self, name: str) -> None:
        """Kill a part or sidecar; return when its next process is ready."""
        self.kill_and_wait(name, READY_SECONDS)

    def frozen_for_a_while(self, name: str) -> None:
        """Stop a part or sidecar, and let it go on."""
        with self.frozen(name):
            time.sleep(FROZEN_SECONDS)

    def frozen_and_replaced(self, name: str) -> None:
        """Stop a part or sidecar, then kill it; return when its next process is ready."""
        old_pid = self.pid(name)
        os.kill(old_pid, signal.SIGSTOP)
        time.sleep(FROZEN_SECONDS)
        os.kill(old_pid, signal.SIGKILL)
        until(lambda: self.is_new(name, old_pid), READY_SECONDS, self.logs)

    def drained_and_replaced(self, name: str) -> None:
        """Have a part or sidecar end in order; return when its next process is ready."""
        assert self.mesh is not None
        old_pid = self.pid(name)
        for pod in PODS:
            if name == sidecar(pod):
                drain(self.mesh.admin_port(pod))
                time.sleep(1)
        os.kill(old_pid, signal.SIGTERM)
        until(lambda: self.is_new(name, old_pid), READY_SECONDS, self.logs)


@contextmanager
def meshed_suite(envoy: Path, directory: Path, profile: str, **environment: str) -> Iterator[MeshedSuite]:
    """Run a suite in a mesh; at the end stop it and assert that none of its processes is left."""
    base_port = free_block(PORTS)
    options = ("--envoy", str(envoy), "--profile", profile)
    with running_suite_at(base_port, directory, *options, command="tests.nightly.meshed_suite", **environment) as each:
        mesh = MeshPlan(SuiteOptions(directory, Ports.from_base(base_port)), envoy, PROFILES[profile])
        yield MeshedSuite(each.directory, each.base_port, each.process, each.environment, mesh)


def main() -> None:
    """Run the parts and sidecars until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--base-port", type=int, required=True)
    parser.add_argument("--envoy", type=Path, required=True)
    parser.add_argument("--profile", choices=[*PROFILES], required=True)
    given = parser.parse_args()
    options = SuiteOptions(given.dir, Ports.from_base(given.base_port))
    prepare.empty_scratch(options.scratch)
    prepare.write_exchanges(None, options)
    prepare.make_jwt_keys(options)
    java = prepare.java_and_jars(options, print)
    parts = [*MeshPlan(options, given.envoy, PROFILES[given.profile]).parts(java)]
    report = Reporter(all_ready=lambda: print("[mesh] all parts are ready", flush=True))
    asyncio.run(run_parts(parts, options.directory, options.ports.relay, report))


if __name__ == "__main__":
    main()
