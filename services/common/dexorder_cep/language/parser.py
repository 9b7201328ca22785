"""Parser of a trigger's statement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dexorder_cep.language.expressions import parse_count, parse_expression, parse_list
from dexorder_cep.language.intervals import parse_interval
from dexorder_cep.language.reader import TokenReader
from dexorder_cep.language.refusals import TextPosition, refuse
from dexorder_cep.language.syntax import (
    Expression,
    Interval,
    Match,
    Quantified,
    Relation,
    Select,
    SelectItem,
    Skip,
    Table,
    WindowTable,
    names_in,
)
from dexorder_cep.language.tokens import Token

_MAX_REPETITIONS = 1_000_000
_OF_TRADES = ("price", "amount", "side", "trade_id")
_STATEMENTS = frozenset(
    """
    ALTER ANALYZE BEGIN CALL CREATE DELETE DESCRIBE DROP EXECUTE EXPLAIN INSERT MERGE RESET SET SHOW TABLE TRUNCATE
    UPDATE USE VALUES
    """.split()  # noqa: SIM905 - shorter to read
)
"""First words of Flink's statements other than SELECT."""
_REFUSED_AFTER = {
    "JOIN": "joins are",
    "INNER": "joins are",
    "LEFT": "joins are",
    "RIGHT": "joins are",
    "FULL": "joins are",
    "CROSS": "joins are",
    "NATURAL": "joins are",
    ",": "joins are",
    "UNION": "UNION is",
    "INTERSECT": "INTERSECT is",
    "EXCEPT": "EXCEPT is",
    "ORDER": "ORDER BY of a result is",
    "LIMIT": "LIMIT is",
    "FETCH": "FETCH is",
    "OFFSET": "OFFSET is",
    "FOR": "FOR SYSTEM_TIME is",
    "WINDOW": "WINDOW is",
    "QUALIFY": "QUALIFY is",
    "TABLESAMPLE": "TABLESAMPLE is",
}
_REFUSED_IN_PATTERN = {
    "|": "alternation ('|') is",
    "(": "groups in parentheses are",
    "PERMUTE": "PERMUTE is",
    "{": "exclusion ('{- -}') is",
    "{-": "exclusion ('{- -}') is",
    "$": "the anchor '$' is",
}
_QUANTIFIERS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(tokens: Sequence[Token]) -> Select:
    """Return the syntax tree of a trigger's text, with or without a closing semicolon.

    It is one SELECT statement, or a condition alone. That is an extension and never a text of Flink, because Flink's
    statements start with a reserved word that starts no expression.

    Raises:
        InvalidSql: The text is neither.
    """
    reader = TokenReader(tokens)
    if reader.sees("WITH"):
        raise refuse(reader.at, "WITH is not supported; write the inner SELECT in parentheses after FROM")
    if _begins_nothing(reader.token):
        raise reader.unexpected("SELECT", "a condition")
    statement = _select(reader) if reader.sees("SELECT") else _condition(reader)
    reader.accept(";")
    if reader.token.kind != "end":
        raise reader.unexpected("the end of the text")
    return statement


def _begins_nothing(token: Token) -> bool:
    """Return whether no text of a trigger starts with a token: it starts another statement of Flink, or is the end."""
    return token.word in _STATEMENTS or token.kind == "end"


def _condition(reader: TokenReader) -> Select:
    """Read a condition on the rows of ``ohlc``, or of ``ticks`` if it names a column that only trades have."""
    at = reader.at
    condition = parse_expression(reader)
    table = "ticks" if any(name.parts[-1] in _OF_TRADES for name in names_in(condition)) else "ohlc"
    return Select((SelectItem(None, None, at),), Table(table, at), None, condition, (), None, at)


def _select(reader: TokenReader) -> Select:
    at = reader.expect("SELECT")
    reader.enter()
    if reader.accept("DISTINCT"):
        raise refuse(at, "SELECT DISTINCT is not supported: its result would have to be kept forever")
    reader.accept("ALL")
    items = [_item(reader)]
    while reader.accept(","):
        items.append(_item(reader))
    reader.expect("FROM")
    source, alias = _relation(reader)
    _refuse(reader, _REFUSED_AFTER, "a trigger")
    where = parse_expression(reader) if reader.accept("WHERE") else None
    group = parse_list(reader) if reader.accept("GROUP", "BY") else ()
    having = parse_expression(reader) if reader.accept("HAVING") else None
    _refuse(reader, _REFUSED_AFTER, "a trigger")
    reader.leave()
    return Select(tuple(items), source, alias, where, group, having, at)


def _refuse(reader: TokenReader, words: Mapping[str, str], where: str) -> None:
    """Raise InvalidSql if the next word is one of those."""
    if (word := reader.token.word) in words:
        raise refuse(reader.at, f"{words[word]} not supported in {where}")


def _item(reader: TokenReader) -> SelectItem:
    at = reader.at
    if reader.accept("*"):
        return SelectItem(None, None, at)
    if reader.token.kind in ("name", "quoted") and reader.peek(1).text == "." and reader.peek(2).text == "*":
        reader.take()
        reader.expect(".", "*")
        return SelectItem(None, None, at)
    expression = parse_expression(reader)
    return SelectItem(expression, _alias(reader), at)


def _alias(reader: TokenReader) -> str | None:
    if reader.accept("AS"):
        return reader.identifier("a name").text
    token = reader.token
    if token.kind == "quoted":
        return reader.take().text
    if token.kind == "name" and token.text.upper() not in _ENDS_ITEM:
        return reader.identifier("a name").text
    return None


_ENDS_ITEM = frozenset({"FROM", "WHERE", "GROUP", "HAVING", "MATCH_RECOGNIZE", *_REFUSED_AFTER})


def _relation(reader: TokenReader) -> tuple[Relation, str | None]:
    at = reader.at
    found: Relation
    if reader.accept("("):
        if not reader.sees("SELECT"):
            raise reader.unexpected("SELECT")
        found = _select(reader)
        reader.expect(")")
    elif reader.sees("TABLE", "("):
        found = _window(reader)
    elif reader.sees("LATERAL") or reader.sees("UNNEST") or reader.sees("VALUES"):
        raise refuse(at, f"{reader.token.word} is not supported; a trigger reads ohlc or ticks")
    else:
        found = _table(reader)
    alias = None if reader.sees("MATCH_RECOGNIZE") else _alias(reader)
    if reader.sees("MATCH_RECOGNIZE"):
        found = _match(reader, found)
        alias = _alias(reader)
    if alias is not None and reader.sees("("):
        raise refuse(reader.at, "a list of columns after a table's alias is not supported")
    return found, alias


def _table(reader: TokenReader) -> Table:
    token = reader.identifier("a table")
    names = [token.text]
    while reader.accept("."):
        names.append(reader.identifier("a table").text)
    if reader.sees("("):
        raise refuse(token.at, f"the table function {token.text!r} is not supported; a trigger reads ohlc or ticks")
    return Table(".".join(names), token.at)


def _window(reader: TokenReader) -> WindowTable:
    at = reader.expect("TABLE", "(")
    word = reader.token.word
    if word not in ("TUMBLE", "HOP", "CUMULATE"):
        if word == "SESSION":
            raise refuse(reader.at, "SESSION windows are not supported; use TUMBLE, HOP or CUMULATE")
        raise reader.unexpected("TUMBLE", "HOP", "CUMULATE")
    reader.take()
    reader.expect("(")
    source: Relation
    if reader.accept("TABLE"):
        source = _table(reader)
    elif reader.accept("(") and reader.sees("SELECT"):
        source = _select(reader)
        reader.expect(")")
    else:
        raise reader.unexpected("TABLE")
    reader.expect(",", "DESCRIPTOR", "(")
    column = reader.identifier("a column").text
    reader.expect(")")
    sizes: list[int] = []
    while reader.accept(","):
        sizes.append(_length(parse_interval(reader)))
    reader.expect(")")
    reader.expect(")")
    wanted = 1 if word == "TUMBLE" else 2
    if len(sizes) != wanted:
        raise refuse(at, f"{word} takes {wanted} interval{'s' if wanted > 1 else ''}, not {len(sizes)}")
    if wanted == 2 and (sizes[1] % sizes[0] or (word == "CUMULATE" and sizes[0] > sizes[1])):
        raise refuse(at, f"the size of {word} must be a multiple of its {'slide' if word == 'HOP' else 'step'}")
    return WindowTable(
        "TUMBLE" if wanted == 1 else "HOP" if word == "HOP" else "CUMULATE", source, column, tuple(sizes), at
    )


def _length(interval: Interval) -> int:
    if interval.months:
        raise refuse(interval.at, "an interval of months is not accepted here; use DAY or less")
    if interval.milliseconds <= 0:
        raise refuse(interval.at, "the interval must be longer than zero")
    return interval.milliseconds


def _match(reader: TokenReader, table: Relation) -> Match:
    at = reader.expect("MATCH_RECOGNIZE", "(")
    order: list[tuple[Expression, bool]] = []
    partition = parse_list(reader) if reader.accept("PARTITION", "BY") else ()
    if reader.accept("ORDER", "BY"):
        order.append(_order(reader))
        while reader.accept(","):
            order.append(_order(reader))
    measures = _measures(reader)
    _rows_per_match(reader)
    skip = _skip(reader)
    reader.expect("PATTERN", "(")
    reader.accept("^")  # as Flink: accepted, without effect
    pattern = _pattern(reader)
    within = None
    if reader.accept("WITHIN"):
        within = parse_interval(reader)
        _length(within)
    if reader.sees("SUBSET"):
        raise refuse(reader.at, "SUBSET is not supported")
    if not reader.sees("DEFINE"):
        raise reader.unexpected("DEFINE")
    reader.expect("DEFINE")
    define: list[tuple[str, Expression, TextPosition]] = []
    while True:
        token = reader.identifier("a variable of the pattern")
        reader.expect("AS")
        define.append((token.text, parse_expression(reader), token.at))
        if not reader.accept(","):
            break
    reader.expect(")")
    return Match(table, partition, tuple(order), tuple(measures), skip, pattern, within, tuple(define), at)


def _order(reader: TokenReader) -> tuple[Expression, bool]:
    expression = parse_expression(reader)
    descending = reader.accept("DESC")
    if not descending:
        reader.accept("ASC")
    if reader.sees("NULLS"):
        raise refuse(reader.at, "NULLS FIRST and NULLS LAST are not supported")
    return expression, descending


def _measures(reader: TokenReader) -> list[tuple[Expression, str]]:
    found: list[tuple[Expression, str]] = []
    if not reader.accept("MEASURES"):
        return found
    while True:
        expression = parse_expression(reader)
        reader.expect("AS")
        found.append((expression, reader.identifier("a name").text))
        if not reader.accept(","):
            return found


def _rows_per_match(reader: TokenReader) -> None:
    if reader.sees("ALL", "ROWS"):
        raise refuse(reader.at, "ALL ROWS PER MATCH is not supported; use ONE ROW PER MATCH")
    if reader.sees("ONE"):
        reader.expect("ONE", "ROW", "PER", "MATCH")


def _skip(reader: TokenReader) -> Skip:
    at = reader.at
    if not reader.accept("AFTER"):
        return Skip("next", "", at)
    reader.expect("MATCH", "SKIP")
    if reader.accept("PAST"):
        reader.expect("LAST", "ROW")
        return Skip("past", "", at)
    reader.expect("TO")
    if reader.accept("NEXT"):
        reader.expect("ROW")
        return Skip("next", "", at)
    if reader.sees("FIRST") and reader.peek(1).kind in ("name", "quoted") and reader.peek(1).word != "PATTERN":
        reader.take()
        token = reader.identifier("a variable of the pattern")
        return Skip("first", token.text, token.at)
    reader.accept("LAST")
    token = reader.identifier("a variable of the pattern")
    return Skip("last", token.text, token.at)


def _pattern(reader: TokenReader) -> tuple[Quantified, ...]:
    found: list[Quantified] = []
    while not reader.accept(")"):
        _refuse(reader, _REFUSED_IN_PATTERN, "a pattern")
        token = reader.identifier("a variable of the pattern")
        found.append(_quantified(reader, token.text, token.at))
    if not found:
        raise refuse(reader.at, "the pattern is empty; name at least one variable")
    return tuple(found)


def _quantified(reader: TokenReader, name: str, at: TextPosition) -> Quantified:
    bounds = _QUANTIFIERS.get(reader.token.word)
    if bounds is not None:
        reader.take()
    elif reader.accept("{"):
        bounds = _bounds(reader)
    reluctant = bounds is not None and reader.accept("?")
    return Quantified(name, *(bounds or (1, 1)), reluctant, bounds is not None, at)


def _bounds(reader: TokenReader) -> tuple[int, int | None]:
    at = reader.at
    if reader.sees(","):
        raise refuse(at, "'{,m}' is not accepted by Flink SQL; write {0,m}")
    if reader.sees("-"):
        raise refuse(at, "exclusion ('{- -}') is not supported in a pattern")
    least = parse_count(reader, _MAX_REPETITIONS)
    most: int | None = least
    if reader.accept(","):
        most = None if reader.sees("}") else parse_count(reader, _MAX_REPETITIONS)
    reader.expect("}")
    if most is not None and most < max(least, 1):
        raise refuse(at, f"{{{least},{most}}} is not a quantifier: the second number must be at least the first and 1")
    return least, most
