"""Print the words that Flink accepts as names in back quotes only, for ``dexorder_cep/language/tokens.py``.

Run it as ``record.py``. The candidates are all words of Flink's parser; each is tried as the name of a column.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import pyflink
from pyflink.table import EnvironmentSettings, TableEnvironment

TOKENS = "FlinkSqlParserImplConstants.class"


def candidates() -> list[str]:
    """Return the words of Flink's parser, from the constants of its class."""
    (loader,) = (Path(pyflink.__file__).parent / "lib").glob("flink-table-planner-loader-*.jar")
    with zipfile.ZipFile(loader) as outer:
        (planner,) = (name for name in outer.namelist() if name.endswith(".jar"))
        inner = zipfile.ZipFile(io.BytesIO(outer.read(planner)))
    (name,) = (name for name in inner.namelist() if name.endswith(TOKENS))
    return sorted({word.decode() for word in re.findall(rb'"([A-Z][A-Z_0-9]*)"', inner.read(name))})


def main() -> None:
    """Try each word."""
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    table.execute_sql("CREATE TABLE numbers (k INT) WITH ('connector' = 'datagen')")
    parser = table._j_tenv.getParser()
    for word in candidates():
        try:
            parser.parse(f"SELECT k AS {word} FROM numbers")
        except Exception:
            print(word)


if __name__ == "__main__":
    main()
