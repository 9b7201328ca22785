"""FROM: tables, derived tables, windows and OVER, compiled to the steps before a trigger's own condition. Pure."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dexorder_cep.compile.aggregates import WindowAggregate
from dexorder_cep.compile.binder import bind, bind_condition, comparison
from dexorder_cep.compile.code import Function, row_predicate, row_value, row_values
from dexorder_cep.compile.functions import AGGREGATES, MORE_AGGREGATES, aggregate_type
from dexorder_cep.compile.plans import FIRST_SLOT, OverColumn, RowStep, Step, WindowStep
from dexorder_cep.compile.scopes import RowScope, counts_rows, offset_of
from dexorder_cep.compile.tables import TICKER, TIME_SLOT, TableSource, find_table
from dexorder_cep.compile.typed import TICKER_SLOT, TRUE, Apply, ColumnValue, Constant, Typed, TypedColumn
from dexorder_cep.compile.types import BIGINT, BOOLEAN, ROWTIME, WINDOW_TIME, SqlType
from dexorder_cep.language import syntax
from dexorder_cep.language.refusals import MAX_COLUMNS, MAX_SLICES, MAX_STEPS, TextPosition, refuse

_MILLISECOND_NS = 1_000_000
_VALUES = ("FIRST_VALUE", "LAST_VALUE")


class Relation(NamedTuple):
    """Rows that a query reads.

    Attributes:
        table: The table at the bottom.
        steps: Steps from the table's rows to these rows.
        columns: Their columns.
        names: Names by which columns may be qualified.
        windowed: Whether the rows are windows.
    """

    table: TableSource
    steps: tuple[Step, ...]
    columns: tuple[TypedColumn, ...]
    names: tuple[str, ...]
    windowed: bool


class RowQuery(NamedTuple):
    """SELECT without its projection.

    Attributes:
        relation: Rows on which its condition is evaluated.
        condition: WHERE, or HAVING of windows.
        at: Place of the condition.
        scope: Names of its SELECT list.
        projected: Columns of its SELECT list: name and value.
        filtered: Whether WHERE was applied before, as OVER needs it.
    """

    relation: Relation
    condition: Typed
    at: TextPosition
    projected: tuple[tuple[str, Typed], ...]
    filtered: bool


def compile_relation(source: syntax.Relation, alias: str | None) -> Relation:
    """Return the relation after FROM.

    Raises:
        InvalidSql: It is not supported, or a name or type in it is refused.
    """
    if isinstance(source, syntax.Table):
        table = find_table(source)
        return Relation(table, (), table.columns, (alias or source.name,), False)
    if isinstance(source, syntax.WindowTable):
        raise refuse(source.at, "a window needs GROUP BY ticker, window_start, window_end in the same SELECT")
    if isinstance(source, syntax.Match):
        raise refuse(source.at, "MATCH_RECOGNIZE is not supported inside a derived table or window")
    query = compile_query(source)
    columns: list[TypedColumn] = []
    values: list[Typed] = []
    for name, value in query.projected:
        slot = value.slot if isinstance(value, ColumnValue) and value.slot in (TICKER_SLOT, TIME_SLOT) else None
        if slot is None:
            slot = FIRST_SLOT + len(values)
            values.append(value)
        columns.append(TypedColumn(name, value.type, slot))
    relation = query.relation
    keeps = None if query.condition is TRUE else row_predicate(query.condition, query.at)
    identity = 1 if relation.table.source == "ticks" or relation.windowed else None
    step = RowStep(keeps, (), row_values(values, source.at), identity)
    steps = (*relation.steps, step)
    if len(steps) > MAX_STEPS:
        raise refuse(source.at, f"more than {MAX_STEPS} derived tables are nested")
    return Relation(relation.table, steps, tuple(columns), (alias,) if alias else (), relation.windowed)


def compile_query(select: syntax.Select) -> RowQuery:
    """Return a SELECT over rows or windows, checked."""
    if isinstance(select.source, syntax.WindowTable):
        return _windows(select, select.source)
    relation = compile_relation(select.source, select.alias)
    if select.group or select.having is not None:
        at = select.having.at if select.having is not None else select.group[0].at
        raise refuse(
            at,
            "GROUP BY and HAVING need a window, FROM TABLE(TUMBLE(TABLE ohlc, DESCRIPTOR(ts), INTERVAL '5' MINUTE)): "
            "without one a result would change with every row",
        )
    scope, crossings = OverScope(relation), CrossingScope(relation)
    condition, at = _where(select, crossings)
    projected = project(select, scope)
    if crossings.over and scope.over:
        raise refuse(at, "CROSSES and OVER are not supported in one SELECT; put OVER into a derived table")
    if crossings.over:
        steps = (*relation.steps, RowStep(None, tuple(crossings.over), None, None))
        return RowQuery(relation._replace(steps=steps), condition, at, projected, False)
    if not scope.over:
        return RowQuery(relation, condition, at, projected, False)
    keeps = None if condition is TRUE else row_predicate(condition, at)
    steps = (*relation.steps, RowStep(keeps, tuple(scope.over), None, None))
    return RowQuery(relation._replace(steps=steps), TRUE, at, projected, condition is not TRUE)


def _where(select: syntax.Select, scope: RowScope) -> tuple[Typed, TextPosition]:
    if select.where is None:
        return TRUE, select.at
    return bind_condition(select.where, scope, "the condition of WHERE"), select.where.at


def project(select: syntax.Select, scope: RowScope) -> tuple[tuple[str, Typed], ...]:
    """Return names and values of a SELECT list; columns without a name are ``EXPR$n``, as Flink names them."""
    found: dict[str, Typed] = {}
    doubles: Counter[str] = Counter()

    def put(name: str, value: Typed) -> None:
        unique = name
        while unique in found:
            unique, doubles[name] = f"{name}{doubles[name]}", doubles[name] + 1
        found[unique] = value

    for index, item in enumerate(select.items):
        more = len(scope.columns) if item.expression is None else 1
        if len(found) + more > MAX_COLUMNS:
            raise refuse(item.at, f"the SELECT has more than {MAX_COLUMNS} columns")
        if item.expression is None:
            for column in scope.columns:
                put(column.name, scope.value(column))
            continue
        value = bind(item.expression, scope)
        if value.type.base == "NULL":
            raise refuse(item.at, "a column of NULL has no type; write CAST(NULL AS DOUBLE)")
        default = item.expression.parts[-1] if isinstance(item.expression, syntax.Name) else f"EXPR${index}"
        put(item.alias or default, value)
    return tuple(found.items())


def _windows(select: syntax.Select, window: syntax.WindowTable) -> RowQuery:
    source = compile_relation(window.table, None)
    if source.windowed:
        raise refuse(window.at, "windows of windows are not supported")
    columns = {column.name: column for column in source.columns}
    if window.time_column not in columns or columns[window.time_column].slot != TIME_SLOT:
        raise refuse(window.at, f"DESCRIPTOR({window.time_column}): that is not the time column ts")
    condition, at = _where(select, RowScope(source.columns, *source.names))
    keeps = None if condition is TRUE else row_predicate(condition, at)
    scope = GroupScope(source, select)
    having: Typed = TRUE
    if select.having is not None:
        having = bind_condition(select.having, scope, "the condition of HAVING")
        at = select.having.at
    projected = project(select, scope)
    slice_ms, size_ms = window.sizes[0], window.sizes[-1]
    if size_ms // slice_ms > MAX_SLICES:
        raise refuse(window.at, f"the size of a window is more than {MAX_SLICES} times its slide or step")
    step = WindowStep(
        window.kind, slice_ms * _MILLISECOND_NS, size_ms * _MILLISECOND_NS, keeps, tuple(scope.aggregates)
    )
    relation = Relation(source.table, (*source.steps, step), scope.columns, (), True)
    return RowQuery(relation, having, at, projected, False)


def _argument(call: syntax.Call, scope: RowScope, name: str) -> tuple[Function | None, SqlType]:
    """Return the argument of an aggregate over rows, and the type that the aggregate has."""
    if counts_rows(call):
        return None, BIGINT
    value = bind(call.arguments[0], scope)
    if name in ("SUM", "AVG", *MORE_AGGREGATES) and not value.type.is_number:
        raise refuse(call.at, f"{name} takes a number, not {value.type.flink_name()}")
    kind = aggregate_type(name, value.type, may_be_empty=value.type.nullable or name.endswith("SAMP"))
    if name in ("STDDEV", "VARIANCE"):
        kind = kind.or_null()
    return row_value(value, call.at), kind


class OverScope(RowScope):
    """Names of a SELECT over rows, with OVER; each column with OVER gets a slot after the row's."""

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation.columns, *relation.names)
        self.over: list[OverColumn] = []
        self._plain = RowScope(relation.columns, *relation.names)
        self._columns_by_name = {column.name: column for column in relation.columns}
        self._width = _width(relation)

    def call(self, call: syntax.Call) -> Typed | None:
        """Return the value of a function with OVER."""
        if call.over is None:
            return None
        self._check_frame(call.over)
        if call.name == "LAG":
            return self._lag(call)
        if call.name not in AGGREGATES | MORE_AGGREGATES:
            raise refuse(
                call.at, f"{call.name} with OVER is not supported; use LAG, COUNT, SUM, AVG, MIN, MAX or STDDEV"
            )
        if call.over.preceding is None:
            raise refuse(call.over.at, f"{call.name} takes OVER (... ROWS BETWEEN n PRECEDING AND CURRENT ROW)")
        argument, kind = _argument(call, self._plain, call.name)
        aggregate = WindowAggregate(call.name, argument, kind)
        return self._append(OverColumn(aggregate, call.over.preceding + 1, False))

    def _append(self, column: OverColumn) -> Typed:
        self.over.append(column)
        return ColumnValue(self._width + len(self.over) - 1, column.aggregate.type)

    def _lag(self, call: syntax.Call) -> Typed:
        offset = offset_of(call, 1, least=1)
        return self._before(bind(call.arguments[0], self._plain), offset, call.at)

    def _before(self, value: Typed, offset: int, at: TextPosition) -> Typed:
        """Return the value that a row has, some rows before the current one."""
        aggregate = WindowAggregate("LAG", row_value(value, at), value.type.or_null())
        return self._append(OverColumn(aggregate, offset, True))

    def _check_frame(self, frame: syntax.Frame) -> None:
        partition = [each.parts[-1] for each in frame.partition if isinstance(each, syntax.Name)]
        slots = [self._columns_by_name[name].slot for name in partition if name in self._columns_by_name]
        if len(frame.partition) != 1 or slots != [TICKER_SLOT]:
            raise refuse(frame.at, "OVER takes PARTITION BY ticker")
        order = [each.parts[-1] for each in frame.order if isinstance(each, syntax.Name)]
        times = [self._columns_by_name[name].slot for name in order if name in self._columns_by_name]
        if times != [TIME_SLOT]:
            raise refuse(frame.at, "OVER takes ORDER BY ts")


class CrossingScope(OverScope):
    """Names of a WHERE over rows, with CROSSES; the values of the row before get slots after the row's."""

    def call(self, call: syntax.Call) -> Typed | None:
        """Return None: OVER is not accepted here, and other functions are scalar ones."""
        return self._plain.call(call)

    def crossing(self, node: syntax.Operation) -> Typed:
        """Return whether a value is beyond another one, and was not in the row before."""
        values = [bind(each, self._plain) for each in node.operands]
        for each, source in zip(values, node.operands, strict=True):
            if not each.type.is_number:
                raise refuse(source.at, f"{node.operator} takes numbers, not {each.type.flink_name()}")
        before = [each if isinstance(each, Constant) else self._before(each, 1, node.at) for each in values]
        is_above = node.operator == "CROSSES ABOVE"
        now = comparison(">" if is_above else "<", values[0], values[1], node.at)
        was_not = comparison("<=" if is_above else ">=", before[0], before[1], node.at)
        return Apply("AND", (now, was_not), BOOLEAN.or_null())


def _width(relation: Relation) -> int:
    """Return the number of slots of a relation's rows."""
    if not relation.steps:
        return max(column.slot for column in relation.table.columns) + 1
    return FIRST_SLOT + sum(column.slot >= FIRST_SLOT for column in relation.columns)


class GroupScope(RowScope):
    """Names of a SELECT with GROUP BY over windows: the keys and aggregates."""

    def __init__(self, source: Relation, select: syntax.Select) -> None:
        keys = (
            TICKER,
            TypedColumn("window_start", WINDOW_TIME, FIRST_SLOT),
            TypedColumn("window_end", WINDOW_TIME, FIRST_SLOT + 1),
            TypedColumn("window_time", ROWTIME, TIME_SLOT),
        )
        names = [name for name in (select.alias, *source.names) if name]
        super().__init__(self._keys(select, keys), *names)
        self.aggregates: list[WindowAggregate] = []
        self._rows = RowScope(source.columns, *names)
        self._source_names = {column.name for column in source.columns}

    @staticmethod
    def _keys(select: syntax.Select, keys: tuple[TypedColumn, ...]) -> tuple[TypedColumn, ...]:
        by_name = {column.name: column for column in keys}
        found: dict[str, TypedColumn] = {}
        for each in select.group:
            name = each.parts[-1] if isinstance(each, syntax.Name) else None
            if name not in by_name:
                raise refuse(each.at, "GROUP BY of a window takes ticker, window_start, window_end (and window_time)")
            found[name] = by_name[name]
        for name in ("ticker", "window_start", "window_end"):
            if name not in found:
                raise refuse(select.at, f"a window needs GROUP BY ticker, window_start, window_end; {name} is missing")
        return tuple(found.values())

    def column(self, name: syntax.Name) -> Typed:
        """Return the value of a key."""
        if name.parts[-1] in self._source_names and name.parts[-1] != TICKER.name:
            raise refuse(name.at, f"{name.parts[-1]!r} is not in GROUP BY and not in an aggregate")
        return super().column(name)

    def call(self, call: syntax.Call) -> Typed | None:
        """Return the value of an aggregate."""
        if call.over is not None:
            raise refuse(call.over.at, "OVER is not supported in a query with windows")
        if call.name not in AGGREGATES | MORE_AGGREGATES and call.name not in _VALUES:
            return None
        argument, kind = _argument(call, self._rows, call.name)
        self.aggregates.append(WindowAggregate(call.name, argument, kind))
        return ColumnValue(FIRST_SLOT + 1 + len(self.aggregates), kind)
