from services.common.lake.catalog import CatalogSettings
from services.common.lake.tables import OHLC
from spark.tables import TABLES, ensure_tables


def test_tables_are_created_once_and_left_unchanged(catalog: CatalogSettings) -> None:
    before = {layout.name: catalog.load().load_table(layout.name).metadata.table_uuid for layout in TABLES}
    ensure_tables(catalog.load())
    assert {layout.name: catalog.load().load_table(layout.name).metadata.table_uuid for layout in TABLES} == before


def test_ohlc_is_laid_out_as_the_design_says(catalog: CatalogSettings) -> None:
    table = catalog.load().load_table(OHLC.name)
    assert table.format_version == 2
    assert [str(f.transform) for f in table.spec().fields] == ["month", "bucket[4]"]
    assert [table.schema().find_column_name(f.source_id) for f in table.sort_order().fields] == [
        "ticker",
        "period_seconds",
        "open_time",
    ]
    assert table.schema().identifier_field_names() == {"ticker", "period_seconds", "open_time"}
    assert {table.properties[f"write.{a}.mode"] for a in ("merge", "update", "delete")} == {"merge-on-read"}
    assert table.properties["write.distribution-mode"] == "none"
