"""Kafka-Pixy's file as a tree of texts. Pure.

YAML would make numbers and truth values of what looks like them, and a password ``0123`` or ``yes`` is neither: every
scalar stays the text that was written, and whoever needs a number reads one.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_QUOTED = re.compile(r"\s*(?P<mark>['\"]).*(?P=mark)")


class BadYaml(ValueError):
    """The text is no YAML; says where, and never what stands there."""


class _TextLoader(yaml.SafeLoader):
    """A mapping with a key twice is refused; merges and null are as ever."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, "a key comes twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def as_text(self, node: yaml.Node) -> str:
        assert isinstance(node, yaml.ScalarNode)
        return str(self.construct_scalar(node))


for _kind in ("int", "float", "bool", "timestamp", "str"):
    _TextLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _TextLoader.as_text)


def read_tree(text: str) -> object:
    """Mappings, lists, texts and None, nested as they are in the file.

    Raises:
        BadYaml: Names line and column.
    """
    try:
        return yaml.load(text, _TextLoader)  # noqa: S506 - it makes nothing but texts
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        # Aliases and tags are quoted, and an unquoted password may look like one.
        what = _QUOTED.sub("", error.problem or "not readable")
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise BadYaml(f"no YAML: {what} ({where})") from None
    except yaml.YAMLError:
        raise BadYaml("no YAML: a character that can't be in a text") from None
    except RecursionError:
        raise BadYaml("no YAML: nested too deeply, or in itself") from None
