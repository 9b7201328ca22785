"""Build `dexorder_http2` and install it into this Python environment: ``python native/build_http2.py``; needs cargo.

Without cargo, or if the build fails, one line says so and the exit status is 0: everything works on grpcio. A build is
kept in the user's cache folder under the hash of its sources, so each version is built once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from dexorder.setup import config

SOURCES = Path(__file__).resolve().parent
LIBRARY = "libdexorder_http2.dylib" if sys.platform == "darwin" else "libdexorder_http2.so"
TIMEOUT_SECONDS = 300
"""A host that can't reach the crates' registry must not hold up the setup of everything else."""
MODULE = "dexorder_http2.abi3.so"
"""One build serves every Python from 3.11 on."""


def sources_hash() -> str:
    """Return the hash of all that the build depends on: the sources, the locked crates, the platform."""
    digest = hashlib.sha256(sysconfig.get_platform().encode())
    for path in sorted((SOURCES / "Cargo.toml", SOURCES / "crates.lock", *SOURCES.glob("src/*.rs"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(into: Path) -> str:
    """Build the module; return why that is impossible, empty if it is there."""
    if shutil.which("cargo") is None:
        return "cargo is not installed"
    with tempfile.TemporaryDirectory() as target:
        compile_it = ["cargo", "build", "--release", "--locked", "--quiet", "--target-dir", target]
        failed = _run(["sh", "lock.sh"]) or _run(compile_it)
        if not failed:
            _place(Path(target) / "release" / LIBRARY, into)
    return failed


def _run(command: list[str]) -> str:
    """Run a command of the build; return why it failed, empty if it did not."""
    environment = {"CARGO_NET_RETRY": "1", **os.environ, "PYO3_PYTHON": sys.executable}
    try:
        subprocess.run(
            command, cwd=SOURCES, env=environment, capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {TIMEOUT_SECONDS} s"
    except subprocess.CalledProcessError as error:
        lines: list[str] = error.stderr.strip().splitlines() or [f"{command[0]} ended with {error.returncode}"]
        return next((line for line in lines if line.startswith("error")), lines[-1])
    return ""


def _place(built: Path, target: Path) -> None:
    """Copy a file so that another process sees it whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as part:
        part.write(built.read_bytes())
    Path(part.name).chmod(0o644)
    Path(part.name).replace(target)


def main() -> None:
    """Install the module, from the cache if it is there."""
    kept = config.load().cache_dir / "native" / f"{sources_hash()}.so"
    installed = Path(sysconfig.get_path("platlib")) / MODULE
    reason = "" if kept.exists() else build(kept)
    if reason:
        installed.unlink(missing_ok=True)  # of older sources
        print(f"native transport: not built, {reason}; grpcio serves without it")
    elif not installed.exists() or installed.read_bytes() != kept.read_bytes():
        _place(kept, installed)
        print(f"native transport: installed as {installed}")


if __name__ == "__main__":
    main()
