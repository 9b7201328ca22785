"""The folders' graph: no two folders import each other, no module imports upwards, no folder holds more than 20 files.

``python -m tests.unit.test_rooms`` prints the graph, and what breaks a rule.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from dexorder_common.packages import PACKAGES, package_folders
from tests.paths import ROOT

MOST_FILES = 20

LAYERS = {
    "dexorder": "__main__ | demo | cli | cli/history cli/live cli/events cli/udf cli/suite | cli/rows"
    " | cli/terminal | client events | receipts exports | charts | rows | udf/functions | udf | supervisor"
    " | setup | errors",
    "dexorder_cep": "run | compile | language",
    "dexorder_common": "exchanges | rpc | kafka lake messaging metrics | storage"
    " | config proxies | tracing logs | model clock packages",
    "dexorder_exchange_sim": "__main__ | server | .",
    "dexorder_gateway": "__main__ | server | events/server | events/service events/publisher_service | events/sessions"
    " | events/proto_mapping | events/dispatcher | events/ingress events/store | events/delivery"
    " | events/config | events/channels | config | events kafkapixy | keys http_server pixy_flags | http1",
    "dexorder_ingestor": "__main__ | server | control instrument_reports | tickers points | realtime"
    " | realtime.numbered history | realtime.sources | dispatch_runner"
    " | exchange | broker publisher | metrics traces config",
    "dexorder_relay": "__main__ | server | service | engine start | triggers broker | realtime verification | requests"
    " | reading | store metrics | state | config | access fair_semaphore",
    "dexorder_spark": "__main__ | server | driver | table_driver | metrics | pipeline maintenance | cep udf"
    " | records | runtime | source tables | config",
    "dexorder_udf": ".",
    "dexorder_udsource": "__main__ | server | service | . | config",
}
"""The rooms of each package, from the top: transport, service, rules, model. A room is a folder or a module, "." stands
for all modules that no other room holds. A room imports rooms below it only, not its neighbours in the layer.

Name a new room here. Change the order only where the new one tells the reader more.
"""

LIBRARIES = ("dexorder_common", "dexorder_protos")
MAY_IMPORT = {
    "dexorder": (*LIBRARIES, "dexorder_udf"),
    "dexorder.cli.events": (*LIBRARIES, "dexorder", "dexorder_gateway"),  # issues the tokens of users
    "dexorder.cli.suite": (*LIBRARIES, "dexorder", *PACKAGES),  # `dexorder serve`
    "dexorder.supervisor": (*LIBRARIES, "dexorder", *PACKAGES),
    "dexorder_cep": ("dexorder_common.model",),
    "dexorder_common": ("dexorder_protos", "dexorder_http2"),
    "dexorder_exchange_sim": LIBRARIES,
    "dexorder_gateway": LIBRARIES,
    "dexorder_ingestor": LIBRARIES,
    "dexorder_relay": (*LIBRARIES, "dexorder_cep"),
    "dexorder_spark": (*LIBRARIES, "dexorder_cep", "dexorder_udf", "dexorder.setup"),
    "dexorder_udf": LIBRARIES,
    "dexorder_udsource": LIBRARIES,
}
"""Other packages that the modules below a name import."""


@cache
def modules() -> dict[str, Path]:
    """Return the file of each module of our packages but the generated ones."""
    found = {}
    for folder in package_folders():
        for path in sorted(folder.rglob("*.py")):
            found[".".join(path.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")] = path
    return {name: path for name, path in found.items() if not name.startswith("dexorder_protos")}


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the modules of ours that each module imports, anywhere in its text."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                assert node.module and not node.level, f"{path}:{node.lineno}: an import by dots"
                targets = [f"{node.module}.{each.name}" for each in node.names]
                found[name] |= {each if each in modules() else node.module for each in targets}
            elif isinstance(node, ast.Import):
                found[name] |= {each.name for each in node.names}
    return {name: frozenset(each for each in found[name] if each.startswith("dexorder")) for name in modules()}


def longest_prefix(name: str, prefixes: Iterator[str]) -> str | None:
    """Return the longest of the prefixes that the module or one of its folders has for a name."""
    return max((each for each in prefixes if f"{name}.".startswith(f"{each}.")), key=len, default=None)


@cache
def floors(package: str) -> dict[str, int]:
    """Return the layer of each room of a package, 0 for the highest; the room "." is the package's name."""
    layers = [layer.split() for layer in LAYERS[package].split("|")]
    return {
        package if room == "." else f"{package}.{room.replace('/', '.')}": number
        for number, layer in enumerate(layers)
        for room in layer
    }


@cache
def room_of(name: str) -> str | None:
    """Return the room of a module; None for a package's own ``__init__``, which belongs to all of its rooms."""
    package = name.partition(".")[0]
    return None if name == package else longest_prefix(name, iter(floors(package)))


def folder_of(name: str) -> str:
    """Return the folder that holds a module's file."""
    return name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]


def foreign_imports() -> Iterator[str]:
    """Return imports of packages that are not below the importing one."""
    for name, targets in imports().items():
        allowed = MAY_IMPORT[longest_prefix(name, iter(MAY_IMPORT)) or ""]
        for target in targets:
            is_own = target.partition(".")[0] == name.partition(".")[0]
            if not is_own and longest_prefix(target, iter(allowed)) is None:
                yield f"{name} imports {target.partition('.')[0]}"


def rooms_without_a_layer() -> Iterator[str]:
    for name in modules():
        if "." in name and name.partition(".")[0] in LAYERS and room_of(name) is None:
            yield f"{name} has no room in LAYERS"


def arrows() -> Counter[tuple[str, str]]:
    """Return the imports between the rooms of a package."""
    found: Counter[tuple[str, str]] = Counter()
    for name, targets in imports().items():
        for target in targets:
            if target in modules() and target.partition(".")[0] == name.partition(".")[0]:
                source, sink = room_of(name), room_of(target)
                if source is not None and sink is not None and source != sink:
                    found[source, sink] += 1
    return found


def upward_imports() -> Iterator[str]:
    for source, sink in arrows():
        levels = floors(source.partition(".")[0])
        if levels[source] >= levels[sink]:
            yield f"{source} imports upwards {sink}"


def folders_that_import_each_other() -> Iterator[str]:
    """Return pairs of folders; a folder and one inside it are no pair."""
    pairs = {
        (folder_of(name), folder_of(target)) for name in modules() for target in imports()[name] if target in modules()
    }
    for first, second in pairs:
        if first < second and (second, first) in pairs and not second.startswith(f"{first}."):
            yield f"{first} and {second} import each other"


def crowded_folders() -> Iterator[str]:
    files = Counter(folder_of(name) for name, path in modules().items() if path.name != "__init__.py")
    yield from (f"{folder} holds more than {MOST_FILES} files" for folder, count in files.items() if count > MOST_FILES)


def all_breaks() -> set[str]:
    rules = (foreign_imports, rooms_without_a_layer, upward_imports, folders_that_import_each_other, crowded_folders)
    return {each for rule in rules for each in rule()}


def test_every_import_leads_to_a_room_below() -> None:
    assert len(modules()) > 400, "the search finds too few modules"
    assert sorted(all_breaks()) == []


def test_the_tree_has_no_links_and_names_each_package_once() -> None:
    """A checkout works where links are plain files; a wheel owns only names that begin with ``dexorder``."""
    tops = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    tracked = [
        path
        for path in tops
        if path.name in ("bench", "deploy", "dexorder", "docs", "protos", "services", "spark", "tests")
    ]
    assert [path for top in tracked for path in (top, *top.rglob("*")) if path.is_symlink()] == []
    inits = [path.parent for top in ("dexorder", "services", "spark") for path in (ROOT / top).rglob("__init__.py")]
    outermost = {folder.name: folder for folder in inits if not (folder.parent / "__init__.py").exists()}
    assert sorted(outermost) == sorted(PACKAGES)
    assert {*outermost.values()} == {*package_folders()}


def print_graph() -> None:
    """Print each package's layers, each room with the rooms that it imports, and what breaks a rule."""
    drawn = arrows()
    for package in LAYERS:
        outside = {
            target.partition(".")[0]
            for name in imports()
            if name.partition(".")[0] == package
            for target in imports()[name]
        }
        print(f"\n{package}  (imports {', '.join(sorted(outside - {package})) or 'no other'})")
        for room, floor in floors(package).items():
            below = sorted(sink.removeprefix(f"{package}.") for source, sink in drawn if source == room)
            print(f"  {floor + 1:2} {room.removeprefix(f'{package}.'):20} {' '.join(below)}")
    print("\nBreaks:", *sorted(all_breaks()), sep="\n  ")


if __name__ == "__main__":
    print_graph()
