"""Which functions a change alters, and where they live in a process."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from inspect import CO_OPTIMIZED
from types import CodeType, FunctionType

Place = tuple[str, int]
"""Qualified name and first line of a function."""


def module_name(path: str) -> str:
    """Return the dotted name of a module, such as dexorder_cep.run.runs for services/common/dexorder_cep/run/runs."""
    return path[path.index("/dexorder_") + 1 :].replace("/", ".")


def changed_functions(before: CodeType, after: CodeType) -> dict[Place, CodeType] | None:
    """Return the new code of the functions that differ, or None if something differs that runs at the import."""
    if _own(before) != _own(after):
        return None
    found: dict[Place, CodeType] = {}
    for old, new in zip(_nested(before), _nested(after), strict=True):
        if old == new:
            continue
        if old.co_flags & CO_OPTIMIZED:  # a function; the body of a class is not
            found[new.co_qualname, new.co_firstlineno] = new
        elif (inner := changed_functions(old, new)) is not None:
            found |= inner
        else:
            return None
    return found


def _own(code: CodeType) -> tuple[object, ...]:
    constants = [None if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable, constants


def _nested(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def functions(names: Iterable[str]) -> dict[str, dict[Place, list[FunctionType]]]:
    """Return all functions of the named modules that exist in this process."""
    found: dict[str, dict[Place, list[FunctionType]]] = {name: {} for name in names}
    gc.unfreeze()  # what conftest.py has frozen is not listed
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and (places := found.get(each.__globals__.get("__name__", ""))) is not None:
            code = each.__code__
            places.setdefault((code.co_qualname, code.co_firstlineno), []).append(each)
    return found
