"""Completion of the shell: answers a key press from a table of all commands.

Typer gives the same answers, but only after it has imported and built every command. ``completion_table`` writes the
table. The scripts that ``--install-completion`` installs are Typer's own: they run the command with the words of the
command line in the environment. Imports only fast modules.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dexorder.cli.terminal.known_tickers import complete_ticker

TABLE = Path(__file__).with_name("completion.json")
INSTRUCTION = "_DEXORDER_COMPLETE"
"""Variable with which the shell's script asks for completions."""
Offer = tuple[str, str]
"""A word, and its help, which may be empty."""


def answer(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Return what to print for the shell, and the exit code; None if Typer has to answer.

    Typer answers for other shells, and if the table can't be read.
    """
    shell = _SHELLS.get(environment.get(INSTRUCTION, ""))
    if shell is None:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        words, incomplete = shell[0](environment)
        return shell[1](offers(json.loads(TABLE.read_text(encoding="utf-8")), words, incomplete), environment)
    return None


def offers(table: Mapping[str, Any], words: Sequence[str], incomplete: str) -> list[Offer]:
    """Return the candidates for the last, incomplete word.

    Args:
        table: Entries of commands by their paths, ``dexorder``'s own by an empty one.
        words: Complete words after ``dexorder``.
    """
    path, given, count, option, literal = "", set[str](), 0, None, False
    for word in words:
        command = table[path]
        if option is not None:  # the word is its value
            option = None
        elif word == "--" and not literal:
            literal = True
        elif word[:1] == "-" and not literal:
            if (found := _option(command, word)) is not None:
                given.add(found["names"][0])
                option = found if "values" in found and word in found["names"] else None
        elif not command["commands"]:
            count += 1
        elif word in command["commands"]:
            path, given = f"{path} {word}".strip(), set()
        else:
            break  # an unknown command: offer the existing ones
    command = table[path]
    if incomplete[:1] == "-" and not literal:
        name, equals, value = incomplete.partition("=")
        if not equals:
            return _options(command, given, incomplete)
        option, incomplete = _option(command, name), value
    if option is not None:
        return _values(option, incomplete)
    arguments = command["arguments"]
    if count < len(arguments) or (arguments and "many" in arguments[-1]):
        return _values(arguments[min(count, len(arguments) - 1)], incomplete)
    names = [name for name in command["commands"] if name.startswith(incomplete)]
    return [(name, table[f"{path} {name}".strip()]["help"]) for name in names]


def _option(command: Mapping[str, Any], word: str) -> Mapping[str, Any] | None:
    """Return the option of a word such as ``--since``, ``--since=-1d``, ``-s`` or ``-s-1d``."""
    name = word.partition("=")[0] if word.startswith("--") else word[:2]
    return next((each for each in command["options"] if name in each["names"]), None)


def _options(command: Mapping[str, Any], given: set[str], incomplete: str) -> list[Offer]:
    wanted = [each for each in command["options"] if "many" in each or each["names"][0] not in given]
    return [(name, each["help"]) for each in wanted for name in each["names"] if name.startswith(incomplete)]


def _values(parameter: Mapping[str, Any], incomplete: str) -> list[Offer]:
    fixed = [each for each in parameter.get("values", ()) if each.startswith(incomplete)]
    tickers = complete_ticker(incomplete) if "tickers" in parameter else []
    return [(each, "") for each in fixed + tickers]


def _bash_words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    words, place = split(environment["COMP_WORDS"]), int(environment["COMP_CWORD"])
    return words[1:place], words[place] if place < len(words) else ""


def _typed_words(environment: Mapping[str, str]) -> tuple[list[str], str]:
    text = environment["_TYPER_COMPLETE_ARGS"]
    words = split(text)[1:]
    return (words, "") if text.endswith(" ") or not words else (words[:-1], words[-1])


def split(text: str) -> list[str]:
    """Return the words of a command line. Its last quotation may be open."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quotation or a backslash at the end: return the incomplete word
        words.append(lexer.token)
    return words


def _for_bash(found: Sequence[Offer], _: Mapping[str, str]) -> tuple[str, int]:
    return "\n".join(word for word, _ in found), 0


def _for_zsh(found: Sequence[Offer], _: Mapping[str, str]) -> tuple[str, int]:
    if not found:
        return "_files", 0
    lines = [f'"{_escaped(word)}"' + (f':"{_escaped(help_)}"' if help_ else "") for word, help_ in found]
    return "_arguments '*: :((" + "\n".join(lines) + "))'", 0


def _escaped(text: str) -> str:
    """Return text for a word in double quotes, within single ones, in a colon-separated list."""
    for mark, escape in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", r"\\:")):
        text = text.replace(mark, escape)
    return text


def _for_fish(found: Sequence[Offer], environment: Mapping[str, str]) -> tuple[str, int]:
    if environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return "", 0 if found else 1
    return "\n".join(f"{word}\t{help_}" if help_ else word for word, help_ in found), 0


_SHELLS: dict[str, tuple[Callable[..., tuple[list[str], str]], Callable[..., tuple[str, int]]]] = {
    "complete_bash": (_bash_words, _for_bash),
    "complete_zsh": (_typed_words, _for_zsh),
    "complete_fish": (_typed_words, _for_fish),
}
"""By instruction: how a shell hands over the command line, and how it takes the answer."""
