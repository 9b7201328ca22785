"""Parser of expressions. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dexorder_cep.language.intervals import parse_interval, parse_timestamp
from dexorder_cep.language.reader import TokenReader
from dexorder_cep.language.refusals import MAX_OFFSET, TextPosition, refuse
from dexorder_cep.language.syntax import (
    Call,
    Expression,
    Frame,
    Keyword,
    Name,
    Number,
    Operation,
    Text,
    TypeName,
)
from dexorder_cep.language.tokens import COLUMNS_WITHOUT_QUOTES

_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_RANGES = ("BETWEEN", "IN", "LIKE")
_Read: TypeAlias = Callable[[TokenReader], Expression]


def parse_expression(reader: TokenReader) -> Expression:
    """Read an expression."""
    reader.enter()
    found = _chain(reader, "OR", _conjunction)
    reader.leave()
    return found


def parse_list(reader: TokenReader) -> tuple[Expression, ...]:
    """Read expressions with commas between them."""
    found = [parse_expression(reader)]
    while reader.accept(","):
        found.append(parse_expression(reader))
    return tuple(found)


def _conjunction(reader: TokenReader) -> Expression:
    return _chain(reader, "AND", _negation)


def _chain(reader: TokenReader, word: str, read: _Read) -> Expression:
    first = read(reader)
    if not reader.sees(word):
        return first
    at, operands = reader.at, [first]
    while reader.accept(word):
        reader.count_node(reader.at)
        operands.append(read(reader))
    return Operation(word, tuple(operands), at)


def _negation(reader: TokenReader) -> Expression:
    if not reader.sees("NOT"):
        return _predicate(reader)
    at = reader.expect("NOT")
    reader.count_node(at)
    reader.enter()
    found = Operation("NOT", (_negation(reader),), at)
    reader.leave()
    return found


def _predicate(reader: TokenReader) -> Expression:
    left = _sum(reader)
    depth = 0
    while (found := _test(reader, left)) is not None:
        left = found
        reader.count_node(left.at)
        reader.enter()
        depth += 1
    reader.leave(depth)
    return left


def _test(reader: TokenReader, left: Expression) -> Expression | None:
    """Read a comparison or test of ``left`` if one is next."""
    at = reader.at
    if reader.token.kind == "symbol" and reader.token.text in _COMPARISONS:
        operator = reader.take().text
        if operator == "!=":
            raise refuse(at, "'!=' is not accepted by Flink SQL; write '<>'")
        return Operation(operator, (left, _sum(reader)), at)
    if reader.accept("IS"):
        return _is(reader, left, at)
    for operator in ("CROSSES ABOVE", "CROSSES BELOW"):  # an extension: Flink has no such operators
        if reader.accept(*operator.split()):
            return Operation(operator, (left, _sum(reader)), at)
    if reader.token.word in _RANGES:
        return _range(reader, left, at)
    if reader.sees("NOT") and reader.peek(1).word in _RANGES:
        reader.take()
        return Operation("NOT", (_range(reader, left, at),), at)
    return None


def _is(reader: TokenReader, left: Expression, at: TextPosition) -> Expression:
    negated = reader.accept("NOT")
    for word in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
        if reader.accept(word):
            name = "NULL" if word == "UNKNOWN" else word
            return Operation(f"IS NOT {name}" if negated else f"IS {name}", (left,), at)
    if reader.sees("DISTINCT"):
        raise refuse(at, "IS DISTINCT FROM is not supported")
    raise reader.unexpected("NULL", "TRUE", "FALSE", "UNKNOWN")


def _range(reader: TokenReader, left: Expression, at: TextPosition) -> Expression:
    word = reader.take().word
    if word == "BETWEEN":
        if reader.accept("SYMMETRIC"):
            raise refuse(at, "BETWEEN SYMMETRIC is not supported")
        reader.accept("ASYMMETRIC")
        low = _sum(reader)
        reader.expect("AND")
        return Operation("BETWEEN", (left, low, _sum(reader)), at)
    if word == "LIKE":
        pattern = _sum(reader)
        escape = (_sum(reader),) if reader.accept("ESCAPE") else ()
        return Operation("LIKE", (left, pattern, *escape), at)
    reader.expect("(")
    if reader.sees("SELECT"):
        raise refuse(reader.at, "a subquery is not supported in an expression")
    values = parse_list(reader)
    reader.expect(")")
    return Operation("IN", (left, *values), at)


def _sum(reader: TokenReader) -> Expression:
    return _left(reader, ("+", "-", "||"), _product)


def _product(reader: TokenReader) -> Expression:
    return _left(reader, ("*", "/", "%"), _unary)


def _left(reader: TokenReader, symbols: tuple[str, ...], read: _Read) -> Expression:
    left = read(reader)
    depth = 0
    while reader.token.kind == "symbol" and reader.token.text in symbols:
        at, operator = reader.at, reader.take().text
        reader.count_node(at)
        reader.enter()
        depth += 1
        left = Operation(operator, (left, read(reader)), at)
    reader.leave(depth)
    return left


def _unary(reader: TokenReader) -> Expression:
    if not (reader.sees("-") or reader.sees("+")):
        return _primary(reader)
    sign = reader.take()
    reader.count_node(sign.at)
    reader.enter()
    operand = _unary(reader)
    reader.leave()
    return operand if sign.text == "+" else Operation("NEGATE", (operand,), sign.at)


def _primary(reader: TokenReader) -> Expression:
    token = reader.token
    reader.count_node(token.at)
    if token.kind == "number":
        return Number(reader.take().text, token.at)
    if token.kind == "text":
        return Text(reader.take().text, token.at)
    if reader.accept("("):
        if reader.sees("SELECT"):
            raise refuse(reader.at, "a subquery is not supported in an expression")
        inner = parse_expression(reader)
        if reader.sees(","):
            raise refuse(reader.at, "a row of several values is not supported")
        reader.expect(")")
        return inner
    word = token.word
    if word in ("TRUE", "FALSE", "NULL", "UNKNOWN"):
        reader.take()
        return Keyword({"TRUE": True, "FALSE": False}.get(word), token.at)
    if word == "CASE":
        return _case(reader)
    if word in ("CAST", "TRY_CAST") and reader.peek(1).text == "(":
        return _cast(reader)
    if word == "INTERVAL":
        return parse_interval(reader)
    if word == "TIMESTAMP" and reader.peek(1).kind == "text":
        reader.take()
        return parse_timestamp(reader.take(), token.at)
    if word == "EXISTS":
        raise refuse(token.at, "a subquery is not supported in an expression")
    if word in ("FINAL", "RUNNING") and reader.peek(1).kind == "name":
        reader.take()
        if word == "RUNNING":
            raise refuse(token.at, "RUNNING is not supported; measures are final")
        return _primary(reader)
    if token.kind == "name" and reader.peek(1).text == "(" and reader.peek(1).kind == "symbol":
        return _call(reader)
    return _name(reader)


def _name(reader: TokenReader) -> Expression:
    first = reader.identifier("an expression", COLUMNS_WITHOUT_QUOTES)
    parts = [first.text]
    while reader.accept("."):
        if reader.sees("*"):
            raise refuse(reader.at, "'*' is not accepted after a name here")
        parts.append(reader.identifier("a column", COLUMNS_WITHOUT_QUOTES).text)
        if len(parts) > 3:
            raise refuse(first.at, "a name has at most three parts")
    return Name(tuple(parts), first.at)


def _call(reader: TokenReader) -> Expression:
    token = reader.take()
    name = token.text.upper()
    reader.expect("(")
    star = distinct = False
    arguments: tuple[Expression, ...] = ()
    if reader.accept("*"):
        star = True
    elif not reader.sees(")"):
        distinct = reader.accept("DISTINCT")
        reader.accept("ALL")
        if reader.sees("SELECT"):
            raise refuse(reader.at, "a subquery is not supported in an expression")
        arguments = parse_list(reader)
        if reader.sees("FROM") or reader.sees("IN") or reader.sees("TO"):
            raise refuse(reader.at, f"{name} with {reader.token.word} is not supported; separate arguments by commas")
    reader.expect(")")
    over = _frame(reader) if reader.sees("OVER") else None
    return Call(name, arguments, token.at, star, distinct, over)


def _frame(reader: TokenReader) -> Frame:
    at = reader.expect("OVER")
    reader.expect("(")
    order: tuple[Expression, ...] = ()
    preceding: int | None = None
    partition = parse_list(reader) if reader.accept("PARTITION", "BY") else ()
    if reader.accept("ORDER", "BY"):
        order = (parse_expression(reader),)
        reader.accept("ASC")
        if reader.sees("DESC"):
            raise refuse(reader.at, "OVER accepts ORDER BY ts in ascending order only")
        if reader.sees(","):
            raise refuse(reader.at, "OVER accepts ORDER BY ts only")
    if reader.sees("RANGE"):
        raise refuse(reader.at, "RANGE is not supported; write ROWS BETWEEN n PRECEDING AND CURRENT ROW")
    if reader.accept("ROWS"):
        between = reader.accept("BETWEEN")
        if reader.sees("UNBOUNDED"):
            raise refuse(reader.at, "UNBOUNDED PRECEDING is not supported; write a number of rows")
        number = reader.token
        preceding = parse_count(reader, MAX_OFFSET)
        if not reader.sees("PRECEDING"):
            raise refuse(number.at, "the frame of OVER is ROWS BETWEEN n PRECEDING AND CURRENT ROW")
        reader.expect("PRECEDING")
        if between:
            reader.expect("AND", "CURRENT", "ROW")
    reader.expect(")")
    return Frame(partition, order, preceding, at)


def _case(reader: TokenReader) -> Expression:
    at = reader.expect("CASE")
    reader.enter()
    subject = None if reader.sees("WHEN") else parse_expression(reader)
    parts: list[Expression] = []
    while reader.accept("WHEN"):
        condition = parse_expression(reader)
        if subject is not None:
            condition = Operation("=", (subject, condition), at)
            reader.count_node(at)
        reader.expect("THEN")
        parts += [condition, parse_expression(reader)]
    if not parts:
        raise reader.unexpected("WHEN")
    parts.append(parse_expression(reader) if reader.accept("ELSE") else Keyword(None, at))
    reader.expect("END")
    reader.leave()
    return Operation("CASE", tuple(parts), at)


def _cast(reader: TokenReader) -> Expression:
    word = reader.token.word
    at = reader.expect(word)
    reader.expect("(")
    operand = parse_expression(reader)
    reader.expect("AS")
    if reader.token.kind != "name":
        raise reader.unexpected("a type")
    name = reader.take()
    arguments: list[int] = []
    if reader.accept("("):
        arguments.append(parse_count(reader, 2**31 - 1))
        if reader.accept(","):
            arguments.append(parse_count(reader, 38))
        reader.expect(")")
    reader.expect(")")
    return Operation(word, (operand,), at, TypeName(name.text.upper(), tuple(arguments), name.at))


def parse_count(reader: TokenReader, most: int) -> int:
    """Read a whole number from 0 to ``most``."""
    token = reader.token
    if token.kind != "number" or not token.text.isdigit():
        raise reader.unexpected("a whole number")
    reader.take()
    if len(token.text) > 10 or int(token.text) > most:
        raise refuse(token.at, f"{token.text[:20]} is more than {most}")
    return int(token.text)
