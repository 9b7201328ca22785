"""What the images leave out of installed packages."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.paths import ROOT


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slim", ROOT / "deploy" / "slim.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_keep_their_code_and_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stripped = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: stripped.append(Path(command[-1]).name))
    kept = {
        "numpy/core.py",
        "numpy/testing/utils.py",
        "numpy.libs/libblas.so.3",
        "pyarrow/lib.so",
        "pyarrow/libarrow_python.so.26.1.0",
        "pyspark/licenses/LICENSE-re2j.txt",
    }
    removed = {
        "numpy/tests/test_core.py",
        "numpy/core.pyi",
        "pyarrow/include/arrow/api.h",
        "pyarrow/libarrow_flight.so.26",
        "pyspark/examples/pi.py",
    }
    for name in (*kept, *removed, "pyarrow/libarrow_python.so", "pyarrow/libarrow_python.so.26"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(Path(name).name[:15])
    load().prune(tmp_path)
    links = {"pyarrow/libarrow_python.so", "pyarrow/libarrow_python.so.26"}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == kept | links
    assert {str((tmp_path / name).readlink()) for name in links} == {"libarrow_python.so.26.1.0"}
    assert sorted(stripped) == ["lib.so", "libarrow_python.so.26.1.0"]  # strip can damage those of numpy.libs


def test_modules_without_their_packages_are_skipped_and_missing_ones_of_ours_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "slimmed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "driver.py").write_text("import absent_package.part\n")
    (package / "__main__.py").write_text("raise SystemExit('started')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load().compile_imported("slimmed")
    assert capsys.readouterr().out == "slimmed.driver is not compiled: No module named 'absent_package'\n"
    (package / "other.py").write_text("import slimmed.absent\n")
    with pytest.raises(ModuleNotFoundError, match=r"slimmed\.absent"):
        load().compile_imported("slimmed")
