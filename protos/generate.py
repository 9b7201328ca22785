"""Generation of services/common/dexorder_protos from the protos; ``--check`` fails if it is stale.

protoc writes to a temporary folder first, so a failed run keeps the old code.
"""

from __future__ import annotations

import filecmp
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "services" / "common" / "dexorder_protos"
PREFIX = "dexorder_protos"
MODULES = (ROOT / "protos", ROOT / "protos" / "vendor")
DOCSTRING = '"""Generated from protos/ by protos/generate.py; never edited."""\n'


def proto_files(module: Path) -> list[str]:
    """Return the paths of a module's files, relative to it; the vendor module is not part of the outer one."""
    files = (p.relative_to(module) for p in sorted(module.rglob("*.proto")))
    return [str(p) for p in files if p.parts[0] != "vendor"]


def run_protoc(out: Path) -> None:
    """Generate messages, stubs and their types for both modules into ``out``."""
    plugin = Path(sys.executable).parent
    for module in MODULES:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                *(f"-I{each}" for each in (module, *MODULES)),
                f"--plugin=protoc-gen-mypy={plugin}/protoc-gen-mypy",
                f"--plugin=protoc-gen-mypy_grpc={plugin}/protoc-gen-mypy_grpc",
                f"--python_out={out}",
                f"--grpc_python_out={out}",
                f"--mypy_out=quiet:{out}",
                f"--mypy_grpc_out=quiet:{out}",
                *proto_files(module),
            ],
            check=True,
            cwd=module,
        )


def prefix_imports(text: str, packages: list[str]) -> str:
    """Change absolute imports of our generated packages to imports below ``dexorder_protos``."""
    for package in packages:
        text = re.sub(rf"^(from|import) {package}(?=[. ])", rf"\1 {PREFIX}.{package}", text, flags=re.M)
        text = re.sub(rf"(?<![\w.])_?{package}\.(?=[\w.]+_pb2)", rf"{PREFIX}.{package}.", text)
    return text


def finish(out: Path) -> None:
    """Prefix imports, drop ``_grpc`` files of protos without a service, add ``__init__.py``."""
    packages = [p.name for p in out.iterdir() if p.is_dir()]
    for path in [*out.rglob("*_pb2_grpc.py"), *out.rglob("*_pb2_grpc.pyi")]:
        source = path.with_suffix(".py").read_text() if path.with_suffix(".py").exists() else ""
        if "class " not in source:
            path.unlink()
    for path in [*out.rglob("*.py"), *out.rglob("*.pyi")]:
        path.write_text(prefix_imports(path.read_text(), packages))
    for folder in [out, *(p for p in out.rglob("*") if p.is_dir())]:
        (folder / "__init__.py").write_text(DOCSTRING)


def differences(left: Path, right: Path) -> list[str]:
    """Return the relative paths that are missing on one side or differ in content."""
    names = {str(p.relative_to(d)) for d in (left, right) for p in d.rglob("*.py*") if "__pycache__" not in p.parts}
    same = filecmp.cmpfiles(left, right, sorted(names), shallow=False)[0]
    return sorted(names - set(same))


def main() -> int:
    """Generate, then compare with or replace services/common/dexorder_protos; return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        run_protoc(out)
        finish(out)
        if "--check" in sys.argv[1:]:
            stale = differences(out, TARGET)
            if stale:
                print("services/common/dexorder_protos is stale, run `make proto`:", *stale, sep="\n  ")
            return 1 if stale else 0
        if TARGET.exists():
            shutil.rmtree(TARGET)
        shutil.copytree(out, TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
