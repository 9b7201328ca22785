from services.common.lake.catalog import CatalogSettings
from services.common.lake.tables import DEAD_LETTERS
from services.common.model.times import SECOND_NS
from spark.pipeline.dead_letters import DeadLetter, append_dead_letters

NOW_NS = 1_800_000_000 * SECOND_NS


def test_each_dead_letter_is_kept_once(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    first = DeadLetter(0, 7, "not a DataResponse", "key", {"dx-job": "j"}, b"\xff")
    second = DeadLetter(1, 7, "headers", None, {}, None)
    assert append_dead_letters(tables, "host:1", [first], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:1", [first, second], now_ns=NOW_NS) == 1
    assert append_dead_letters(tables, "host:2", [first], now_ns=NOW_NS) == 1
    rows = tables.load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
    kept = next(row for row in rows if row["source"] == "host:1" and row["partition"] == 0)
    assert (kept["payload"], kept["headers"], kept["key"]) == (b"\xff", [("dx-job", "j")], "key")
