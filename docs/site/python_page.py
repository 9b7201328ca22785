"""The page of the Python packages: every public name, by mkdocstrings from the code itself."""

from __future__ import annotations

import importlib

MODULES = {
    "dexorder": "What `import dexorder` offers.",
    "dexorder.errors": "Every error that the client raises is a `DexorderError`.",
    "dexorder.client.requests": "`client.requests`; `Client` has the same methods without `await`.",
    "dexorder.client.table_rows": "`client.rows`.",
    "dexorder.client.series": "`client.series`.",
    "dexorder.client.realtime": "`client.realtime`.",
    "dexorder.client.live": "What `client.live` yields.",
    "dexorder.client.receipts": "`client.receipts`: which rows were used, and why each hole is a hole.",
    "dexorder.client.points": "`client.funding` and what else has times instead of periods.",
    "dexorder.client.triggers": "`client.triggers`.",
    "dexorder.client.udfs": "`client.udfs`.",
    "dexorder.events": "Publisher of user events.",
    "dexorder.udf": "Functions of your own on the stream.",
    "dexorder_cep": "Triggers without the rest of the suite.",
    "dexorder_udf.host": "Host of functions that speak Kapacitor's UDF protocol, without the rest of the suite.",
    "dexorder_udf.spec": "What the host runs.",
}
"""Documented modules and their introductions."""


def public_names(module: str) -> list[str]:
    """Return the names of ``__all__``, else the classes that a module defines."""
    found = importlib.import_module(module)
    if hasattr(found, "__all__"):
        return sorted(found.__all__)
    return sorted(
        name
        for name, value in vars(found).items()
        if isinstance(value, type) and value.__module__ == module and not name.startswith("_")
    )


def defined_as(module: str, name: str) -> str:
    """Return the full name of a public name where it is defined: mkdocstrings follows no import."""
    value = getattr(importlib.import_module(module), name)
    home = getattr(value, "__module__", None)
    return f"{home}.{value.__qualname__}" if home and hasattr(value, "__qualname__") else f"{module}.{name}"


def python_page() -> str:
    """Return the page."""
    lines = ["# Python", "", "Generated from the code. [The command and the client](../docs/command.md) explain them."]
    for module, text in MODULES.items():
        lines += ["", f"## {module}", "", text]
        lines += [line for name in public_names(module) for line in ("", f"::: {defined_as(module, name)}")]
    return "\n".join(lines) + "\n"
