"""Names in an expression over single rows. Pure."""

from __future__ import annotations

from dexorder_cep.compile.pattern_scope import find_column
from dexorder_cep.compile.typed import Column, ColumnValue, Typed
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import refuse


class RowScope:
    """Columns of a relation, by name or qualified with the relation's name or alias."""

    def __init__(self, columns: tuple[Column, ...], *names: str | None) -> None:
        self.columns = columns
        self._columns = {column.name: column for column in columns}
        self._names = {name for name in names if name}

    def value(self, column: Column) -> Typed:
        """Return the value of a column of the current row."""
        return ColumnValue(column.slot, column.type)

    def column(self, name: syntax.Name) -> Typed:
        """Return the value of a name."""
        *qualifier, column = name.parts
        if qualifier and ".".join(qualifier) not in self._names:
            raise refuse(name.at, f"{'.'.join(qualifier)!r} is not a table of this query")
        return self.value(find_column(self._columns, column, name))

    def call(self, call: syntax.Call) -> Typed | None:
        """Return None: rows have only scalar functions."""
        return None
