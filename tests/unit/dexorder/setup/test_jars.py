"""Download of jars: complete or not at all, verified, retried, and not repeated."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tenacity

from dexorder.setup import jars
from dexorder.setup.__main__ import main
from dexorder.setup.config import ResolveError, SetupError
from dexorder.setup.java import Java
from dexorder.setup.manifest import WantedSet
from dexorder.setup.resolve import Resolver

JAVA = Java(Path("/opt/java"), "21.0.8", "PATH")
CONTENT = {"g.one:a:1": b"aaa", "g.two:b:2": b"bbb"}


class FakeMirror:
    """Return a resolver that fails ``failures`` times and then writes ``content`` as real ones do."""

    def __init__(self, content: dict[str, bytes], failures: int = 0) -> None:
        self.content = content
        self.failures = failures
        self.calls = 0
        self.__name__ = "fake"

    def __call__(self, wanted: WantedSet, scratch: Path, java: Java) -> None:
        self.calls += 1
        if self.calls <= self.failures:
            raise ResolveError("the mirror is away")
        for coordinate, data in self.content.items():
            group, artifact, version = coordinate.split(":")
            folder = scratch / "tree" / Path(*group.split(".")) / artifact / version
            folder.mkdir(parents=True)
            (folder / f"{artifact}-{version}.jar").write_bytes(data)


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[Resolver]], Path]:
    """Set up a project with one set of two jars and an empty cache; return a function that sets the resolvers."""
    (tmp_path / "jars.toml").write_text('[s]\ntransitive = true\ncoordinates = ["g.one:a:1"]\n')
    sums = "".join(
        f'"{name}" = {{sha256 = "{hashlib.sha256(data).hexdigest()}", bytes = {len(data)}}}\n'
        for name, data in CONTENT.items()
    )
    (tmp_path / "jars.lock").write_text(f"[s]\n{sums}")
    monkeypatch.setattr(jars, "WANTED_FILE", tmp_path / "jars.toml")
    monkeypatch.setattr(jars, "LOCK_FILE", tmp_path / "jars.lock")
    monkeypatch.setattr(jars, "RETRY_WAIT", tenacity.wait_none())
    monkeypatch.setenv("DEXORDER_CACHE", str(tmp_path / "cache"))

    def with_resolvers(resolvers: Sequence[Resolver]) -> Path:
        monkeypatch.setattr(jars, "_resolvers", lambda: resolvers)
        return tmp_path / "cache" / "jars" / "s"

    return with_resolvers


Use = Callable[[Sequence[Resolver]], Path]


def fetch() -> list[str]:
    lines: list[str] = []
    jars.fetch("s", lambda: JAVA, lines.append)
    return lines


def test_fetch_fills_an_empty_cache_once(use: Use) -> None:
    mirror = FakeMirror(CONTENT)
    folder = use([mirror])
    fetch()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a-1.jar": b"aaa", "b-2.jar": b"bbb"}
    assert jars.jar_paths("s") == (folder / "a-1.jar", folder / "b-2.jar")
    assert fetch() == [f"jars s: 2 present and verified in {folder}"]
    assert mirror.calls == 1


def test_damaged_cache_is_replaced(use: Use) -> None:
    folder = use([FakeMirror(CONTENT)])
    fetch()
    (folder / "a-1.jar").write_bytes(b"damaged")
    (folder / "stranger-1.jar").write_bytes(b"x")
    fetch()
    assert (folder / "a-1.jar").read_bytes() == b"aaa"
    assert sorted(path.name for path in folder.iterdir()) == ["a-1.jar", "b-2.jar"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"g.one:a:1": b"aaa", "g.two:b:2": b"evil"}, "g.two:b:2 differs from the pinned SHA-256"),
        ({"g.one:a:1": b"aaa"}, "g.two:b:2 is missing"),
    ],
)
def test_unaccepted_jars_never_reach_the_cache(use: Use, content: dict[str, bytes], message: str) -> None:
    folder = use([FakeMirror(content)])
    with pytest.raises(SetupError, match=message):
        fetch()
    assert not folder.exists()
    assert list(folder.parent.iterdir()) == []


def test_failed_download_is_retried(use: Use) -> None:
    mirror = FakeMirror(CONTENT, failures=2)
    use([mirror])
    fetch()
    assert mirror.calls == 3


def test_second_resolver_is_used_when_the_first_fails(use: Use) -> None:
    first, second = FakeMirror({}, failures=99), FakeMirror(CONTENT)
    folder = use([first, second])
    fetch()
    assert (first.calls, second.calls) == (3, 1)
    assert folder.is_dir()


def test_failed_fetch_is_one_sentence(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use([FakeMirror({}, failures=99)])
    with pytest.raises(SetupError, match="could not be fetched: the mirror is away"):
        fetch()


def test_error_of_missing_jars_has_the_command(use: Use) -> None:
    use([])
    with pytest.raises(SetupError, match=r"g\.one:a:1: run `python -m dexorder\.setup fetch s`"):
        jars.jar_folder("s")


def test_optional_set_is_fetched_only_by_its_name(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = use([FakeMirror(CONTENT)])
    jars.WANTED_FILE.write_text('[s]\noptional = true\ntransitive = true\ncoordinates = ["g.one:a:1"]\n')
    monkeypatch.setattr("dexorder.setup.java.ensure_java", lambda: JAVA)
    assert main(["fetch"]) == 0 and not folder.exists()
    assert main(["fetch", "s"]) == 0 and folder.is_dir()


def test_error_names_an_unknown_set(use: Use, capsys: pytest.CaptureFixture[str]) -> None:
    use([])
    assert main(["fetch", "nope"]) == 1
    assert "'nope' is not a set" in capsys.readouterr().err


def test_lock_pins_the_resolved_jars(use: Use, tmp_path: Path) -> None:
    use([FakeMirror({**CONTENT, "g:new:3": b"n"})])
    jars.lock(lambda: JAVA, lambda _: None)
    line = f'"g:new:3" = {{sha256 = "{hashlib.sha256(b"n").hexdigest()}", bytes = 1}}'
    assert line in (tmp_path / "jars.lock").read_text().splitlines()
    fetch()
