"""Download of the jars into the cache, and their paths for other parts."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import tenacity

from dexorder.setup import config, progress, resolve
from dexorder.setup.config import ResolveError, SetupError
from dexorder.setup.java import Java
from dexorder.setup.manifest import (
    LockedJar,
    WantedSet,
    check_folder,
    file_sha256,
    jar_file_name,
    parse_lock,
    parse_wanted,
    render_lock,
)

WANTED_FILE = Path(__file__).with_name("jars.toml")
LOCK_FILE = Path(__file__).with_name("jars.lock")
RETRY_WAIT = tenacity.wait_exponential(multiplier=1, max=10)

Report = Callable[[str], None]


def jar_folder(name: str) -> Path:
    """Return the folder with a set's jars, for parts that start Java; SetupError if one is missing.

    It checks only that each file exists; `fetch` has verified the checksums.
    """
    folder = _set_folder(name)
    missing = [jar.coordinate for jar in _locked(name) if not (folder / jar.file_name).is_file()]
    if missing:
        raise SetupError(
            f"{len(missing)} jar(s) of {name} are missing in {folder}, the first is {missing[0]}: "
            f"run `python -m dexorder.setup fetch {name}`"
        )
    return folder


def jar_paths(name: str) -> tuple[Path, ...]:
    """Return the absolute paths of a set's jars in the lock's order; errors as in `jar_folder`."""
    folder = jar_folder(name)
    return tuple(folder / jar.file_name for jar in _locked(name))


def set_names() -> tuple[str, ...]:
    """Return the names of the sets that every suite needs, in the order of jars.toml."""
    return tuple(name for name, wanted in _wanted().items() if not wanted.optional)


def fetch(name: str, java: Callable[[], Java], report: Report) -> Path:
    """Download a set into the cache unless it is there, complete and with the pinned checksums.

    The folder appears complete or not at all: it is filled under another name and renamed. ``java`` is called only for
    a download. SetupError names the coordinate of a jar that can't be downloaded or differs from its checksum.
    """
    locked = _locked(name)
    folder = _set_folder(name)
    if folder.is_dir() and not check_folder(folder, locked):
        report(f"jars {name}: {len(locked)} present and verified in {folder}")
        return folder
    with _resolved(_wanted()[name], java(), report, locked) as found:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
            fresh = Path(scratch) / "new"
            fresh.mkdir()
            for coordinate, path in found.items():
                shutil.copyfile(path, fresh / jar_file_name(coordinate))
            problems = check_folder(fresh, locked)
            if problems:
                more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
                raise SetupError(
                    f"Jars of {name} were fetched but not accepted: {problems[0]}{more}; "
                    "check the mirror they came from, or run `python -m dexorder.setup lock` if jars.toml was changed"
                )
            _replace(fresh, folder, Path(scratch) / "old")
    report(f"jars {name}: {len(locked)} fetched and verified in {folder}")
    return folder


def lock(java: Callable[[], Java], report: Report) -> None:
    """Resolve every set and write the result to jars.lock; SetupError if a jar can't be downloaded."""
    locked = {}
    for name, wanted in _wanted().items():
        with _resolved(wanted, java(), report) as found:
            locked[name] = tuple(
                LockedJar(coordinate, file_sha256(path), path.stat().st_size) for coordinate, path in found.items()
            )
        report(f"jars {name}: {len(locked[name])} locked")
    LOCK_FILE.write_text(render_lock(locked))


@contextlib.contextmanager
def _resolved(
    wanted: WantedSet, java: Java, report: Report, expected: tuple[LockedJar, ...] = ()
) -> Iterator[dict[str, Path]]:
    """Resolve a set and yield coordinate -> file; the files exist until the context ends.

    The progress of the ``expected`` jars is reported.
    """
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(3),
        wait=RETRY_WAIT,
        retry=tenacity.retry_if_exception_type(ResolveError),
        reraise=True,
    )
    failures = []
    for resolver in _resolvers():
        with tempfile.TemporaryDirectory(prefix="dexorder-jars-") as scratch:
            report(f"jars {wanted.name}: fetching with {resolver.__name__} (once) ...")
            try:
                folder = resolve.download_folder(resolver, Path(scratch))
                with progress.reported(wanted.name, expected, folder, report):
                    retrying(resolver, wanted, Path(scratch), java)
            except ResolveError as error:
                failures.append(str(error))
                continue
            yield resolve.find_jars(Path(scratch) / "tree")
            return
    raise SetupError(f"The jars of {wanted.name} could not be fetched: {'; '.join(failures)}")


def _resolvers() -> Iterable[resolve.Resolver]:
    """Return the resolvers to try in order.

    Maven comes first if it is installed: it has the user's mirrors, proxies and passwords, and downloads in parallel
    (7 s for Kafka's jars, Ivy 49 s). Settings for Ivy mean that the user prefers Ivy.
    """
    choice = config.load().resolver
    if choice == "maven":
        return (resolve.maven,)
    if choice == "ivy" or shutil.which("mvn") is None:
        return (resolve.ivy,)
    if resolve.user_ivy_settings() is not None:
        return (resolve.ivy, resolve.maven)
    return (resolve.maven, resolve.ivy)


def _replace(fresh: Path, folder: Path, aside: Path) -> None:
    if folder.exists():
        folder.rename(aside)
    try:
        fresh.rename(folder)
    except OSError:
        # Another process has put its own verified folder there in between.
        if not folder.is_dir():
            raise


def _set_folder(name: str) -> Path:
    return config.load().cache_dir / "jars" / name


def _wanted() -> dict[str, WantedSet]:
    return parse_wanted(_read(WANTED_FILE))


def _locked(name: str) -> tuple[LockedJar, ...]:
    sets = parse_lock(_read(LOCK_FILE))
    if name not in sets:
        raise SetupError(f"jars.lock: {name!r} is not a set; use {', '.join(sets)}")
    return sets[name]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise SetupError(f"{path} is missing, so the package is not complete: install it again") from None
