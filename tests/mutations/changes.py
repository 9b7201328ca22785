"""Small changes of a module's syntax tree, each a mutation that its nearest tests must notice."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a module: what stood in a line, and what stands there instead.

    Attributes:
        statement: First and last line of the statement around it; of a compound one, those of its head.
        code: The whole module, changed, with the lines of the unchanged one.
    """

    line: int
    before: str
    after: str
    statement: tuple[int, int]
    code: CodeType


def count(source: str) -> int:
    """Return the number of mutations of a module."""
    return sum(1 for _ in _changes(ast.parse(source)))


def mutations(source: str, file: str, chosen: Collection[int] | None = None) -> list[Mutation]:
    """Return the mutations of a module, or those of the chosen numbers, in the order of their lines."""
    tree = ast.parse(source)
    heads = _heads(tree)
    found = []
    for number, (node, before) in enumerate(_changes(tree)):
        if chosen is None or number in chosen:
            code = compile(ast.fix_missing_locations(tree), file, "exec")  # the change is in place until the next step
            place = heads[node.lineno, node.col_offset]
            found.append(Mutation(node.lineno, before, ast.unparse(node), place, code))
    return sorted(found, key=lambda each: each.line)


def _heads(tree: ast.Module) -> dict[tuple[int, int], tuple[int, int]]:
    """Return by the place of a node the lines of the innermost statement around it, without those of its body."""
    heads: dict[tuple[int, int], tuple[int, int]] = {}
    for statement in ast.walk(tree):  # from the outermost to the innermost
        if isinstance(statement, ast.stmt):
            body = getattr(statement, "body", None)
            last = max(body[0].lineno - 1, statement.lineno) if body else statement.end_lineno or statement.lineno
            for node in ast.walk(statement):
                if isinstance(node, ast.stmt | ast.expr):
                    heads[node.lineno, node.col_offset] = statement.lineno, last
    return heads


def _changes(tree: ast.Module) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Make each change in turn and take it back; yield the changed node, and its text before."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield from _changed(node, "ops", [COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
        elif isinstance(node, ast.BoolOp):
            yield from _changed(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            yield from _changed(node, "op", ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
        elif isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= 8:
            yield from _changed(node, "value", node.value + 1)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SWAPPED:
            yield from _changed(node, "func", ast.Name(SWAPPED[node.func.id], ast.Load()))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from _changed(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
        elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            yield from _changed(node, "value", ast.Constant(None))
        for block in ("body", "orelse", "finalbody"):
            yield from _dropped(node, getattr(node, block, []))


def _changed(node: ast.expr | ast.stmt, name: str, value: object) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    before, old = ast.unparse(node), getattr(node, name)
    setattr(node, name, value)
    yield node, before
    setattr(node, name, old)


def _dropped(node: ast.AST, block: object) -> Iterator[tuple[ast.stmt | ast.expr, str]]:
    """Drop each statement of a function that calls or assigns something."""
    if not isinstance(block, list) or isinstance(node, ast.Module | ast.ClassDef):
        return
    for index, statement in enumerate(block):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign) and not is_text:
            block[index] = ast.copy_location(ast.Pass(), statement)
            yield block[index], ast.unparse(statement)
            block[index] = statement
