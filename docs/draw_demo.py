"""Picture of the demonstration for the README: ``make demo 2>&1 | python docs/draw_demo.py docs/images/demo.svg``.

It shows what the demonstration printed, without the starts and stops of the parts, the rows and the chart.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

WIDTH = 106
LEFT_OUT = re.compile(
    r"^\[ *[\d.]+ s\]|of [\d,]+ candles, (?!.*(writing|finished))|reading from|^no process|^chart|^To go"
)
ROWS_BEGIN, ROWS_END = "open_time", "HISTORY_READY"
STYLES = (
    (re.compile(r"^\$ .*", re.MULTILINE), "bold bright_cyan"),
    (re.compile(r"kill -9 \d+ .*"), "bold bright_red"),
    (re.compile(r"proven by \w+[^:]*"), "bold bright_green"),
    (re.compile(r"\bOK\b|(?<= )0(?= *$)", re.MULTILINE), "bold bright_green"),
    (re.compile(r"candles lost +([\d,]*[1-9][\d,]*) +([\d,]*[1-9][\d,]*)"), "bold bright_red"),
)
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""
"""Rich's picture without its web font: nothing of another host is loaded."""


def shown(printed: str) -> str:
    """Return the lines that the picture shows."""
    lines, in_rows = ["$ make demo", ""], False
    for line in printed[printed.index("The simulated exchange now corrupts") :].splitlines():
        in_rows = (in_rows or ROWS_BEGIN in line) and ROWS_END not in line
        if not in_rows and not LEFT_OUT.search(line) and (line.strip() or lines[-1].strip()):
            lines.append(line.rstrip())
    return "\n".join(lines).rstrip()


def styled(text: str) -> Text:
    """Return text in the colours of a terminal."""
    drawn = Text(text)
    for pattern, style in STYLES:
        for match in pattern.finditer(text):
            for group in range(bool(match.groups()), len(match.groups()) + 1):
                drawn.stylize(style, *match.span(group))
    return drawn


def main() -> None:
    """Draw standard input into the file that is the first argument."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False)
    console.print(styled(shown(sys.stdin.read())))
    picture = console.export_svg(title="make demo", theme=DIMMED_MONOKAI, code_format=SVG, unique_id="demo")
    Path(sys.argv[1]).write_text(re.sub(r"[ \t]+$", "", picture, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
