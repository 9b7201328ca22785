from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC
from dexorder_spark.maintenance.procedures import set_tags, tags

_MS_NS = 1_000_000


def test_tags_are_set_moved_and_removed_and_leave_others_alone(catalog: CatalogSettings) -> None:
    tables = catalog.load()
    first, second, third = (commit_files(tables.load_table(OHLC.name)) for _ in range(3))
    table = tables.load_table(OHLC.name)
    table.manage_snapshots().create_tag(third, "mine").commit()
    made_ns = {each.snapshot_id: each.timestamp_ms * _MS_NS for each in table.metadata.snapshots}
    until = {first: made_ns[first] + 10**15, second: made_ns[second] + 10**15}
    set_tags(tables.load_table(OHLC.name), until, ())
    assert tags(tables.load_table(OHLC.name)) == until
    set_tags(tables.load_table(OHLC.name), {first: until[first] + _MS_NS}, {second})
    found = catalog.load().load_table(OHLC.name)
    assert tags(found) == {first: until[first] + _MS_NS}
    assert set(found.metadata.refs) == {"main", "mine", f"notified-{first}"}
