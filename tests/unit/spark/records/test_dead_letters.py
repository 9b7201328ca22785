from collections.abc import Mapping

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.tables import DEAD_LETTERS
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.records import dead_letters
from dexorder_spark.records.dead_letters import LetterLayout, LetterWriter, append_dead_letters
from tests.fakes.staged import stored

NOW_NS = 1_800_000_000 * SECOND_NS
FIRST = {"partition": 0, "offset": 7, "key": "key", "headers": [("dx-job", "j")], "payload": b"\xff"}
SECOND = {"partition": 1, "offset": 7, "key": None, "headers": None, "payload": None}


def append(catalog: CatalogSettings, source: str, *records: Mapping[str, object]) -> int:
    tables = catalog.load()
    writer = LetterWriter(LetterLayout.of(source, tables), now_ns=NOW_NS)
    for record in records:
        writer.add(record, "not a DataResponse")
    writer.flush()
    places = {(0 if record is FIRST else 1, 7) for record in records}
    return append_dead_letters(tables, source, places, writer.written)


def test_each_dead_letter_is_kept_once(catalog: CatalogSettings) -> None:
    assert append(catalog, "host:1", FIRST) == 1
    assert append(catalog, "host:1", FIRST) == 0
    assert append(catalog, "host:1", FIRST, SECOND) == 1
    assert append(catalog, "host:2", FIRST) == 1
    table = catalog.load().load_table(DEAD_LETTERS.name)
    rows = table.scan().to_arrow().to_pylist()
    assert sorted((row["source"], row["partition"]) for row in rows) == [("host:1", 0), ("host:1", 1), ("host:2", 0)]
    kept = next(row for row in rows if row["source"] == "host:1" and row["partition"] == 0)
    assert (kept["payload"], kept["headers"], kept["key"]) == (b"\xff", [("dx-job", "j")], "key")
    assert stored(table) == table.inspect.all_files().num_rows, "the others are removed"


def test_large_records_do_not_stay_in_memory(catalog: CatalogSettings) -> None:
    writer = LetterWriter(LetterLayout.of("host:1", catalog.load()), now_ns=NOW_NS)
    writer.add(FIRST | {"payload": bytes(dead_letters._MAX_BUFFERED_BYTES)}, "too large")
    assert len(writer.written) == 1
