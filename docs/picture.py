"""Draws ``docs/figures/architecture.svg`` of the imports: ``python -m docs.picture``, or ``make docs``.

Every room stands on those that it imports. An arrow that follows from others is left out: what a room imports is all
that can be reached from it. Words are the rooms' own: the first line of each package.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from html import escape
from pathlib import Path
from typing import Final

import grimp

from docs.pages import figure_path

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = figure_path("architecture.svg")
_PACKAGE: Final = "veilgraph"

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _MARGIN = 350, 56, 60, 26, 40
_LETTERS: Final = 58
"""Of a line in a box."""
_STYLE: Final = """
  rect { fill: #f6f8fa; stroke: #57606a; rx: 6px }
  text { font: 11px sans-serif; fill: #24292f }
  .name { font: bold 13px monospace }
  path { fill: none; stroke: #57606a; marker-end: url(#head) }
"""

Imports = dict[str, frozenset[str]]
"""Room → the rooms that it imports, itself left out."""


def imports() -> Imports:
    """Who imports whom of the packages, types alone left out; the highest floor first."""
    graph = grimp.build_graph(_PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    modules = " | ".join(linter["contracts"][0]["layers"]).split(" | ")
    floors = [module for module in modules if graph.find_children(module)]
    found: dict[str, frozenset[str]] = {}
    for floor in floors:
        inside = {floor, *graph.find_descendants(floor)}
        used = {name for module in inside for name in graph.find_modules_directly_imported_by(module)}
        rooms = {name.split(".")[1] for name in used if "." in name}
        found[_room(floor)] = frozenset(rooms & set(map(_room, floors))) - {_room(floor)}
    return found


def _room(module: str) -> str:
    return module.removeprefix(f"{_PACKAGE}.")


def reachable(of: Imports, room: str) -> frozenset[str]:
    """The rooms that one imports, and those that these import."""
    return of[room].union(*(reachable(of, lower) for lower in of[room]))


def needed(of: Imports) -> Imports:
    """Those imports that do not follow from others."""
    return {
        room: frozenset(to for to in lower if not any(to in reachable(of, other) for other in lower - {to}))
        for room, lower in of.items()
    }


def draw() -> str:
    """The picture as SVG."""
    of = imports()
    floor: dict[str, int] = {}
    for room in reversed(of):
        floor[room] = 1 + max((floor[lower] for lower in of[room]), default=-1)
    top, places = max(floor.values()), dict[str, tuple[int, int]]()
    for level in range(top + 1):
        for column, room in enumerate(room for room in reversed(of) if floor[room] == level):
            places[room] = _MARGIN + column * (_WIDTH + _ACROSS), _MARGIN + (top - level) * (_HEIGHT + _DOWN)
    arrows = [
        f'<path d="{_way(places[room], places[to], floor[room] - floor[to])}"/>'
        for room, lower in needed(of).items()
        for to in sorted(lower)
    ]
    boxes = [_box(room, *places[room]) for room in of]
    width = max(x for x, _ in places.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in places.values()) + _HEIGHT + _MARGIN
    marker = (
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" style="fill: #57606a; stroke: none; marker-end: none"/></marker>'
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        "<title>The rooms of veilgraph, each above those that it imports</title>",
        f"<style>{_STYLE}</style>",
        f"<defs>{marker}</defs>",
        f'<rect width="{width}" height="{height}" style="fill: #ffffff; stroke: none"/>',
        *arrows,
        *boxes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _way(start: tuple[int, int], end: tuple[int, int], floors: int) -> str:
    """From a box down to another: straight to the next floor, else between the columns and in from the left."""
    (x1, y1), (x2, y2) = start, end
    middle = _WIDTH // 2
    if floors == 1:
        shift = middle // 2 * ((x2 > x1) - (x2 < x1))
        return f"M{x1 + middle + shift},{y1 + _HEIGHT} L{x2 + middle - shift},{y2}"
    return f"M{x1 + middle},{y1 + _HEIGHT} v{_DOWN // 2} H{x2 - _ACROSS // 2} V{y2 + _HEIGHT // 2} H{x2}"


def _box(room: str, x: int, y: int) -> str:
    source = (ROOT / "src" / _PACKAGE / room / "__init__.py").read_text(encoding="utf-8")
    lines = textwrap.wrap((ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].replace("``", ""), _LETTERS)
    text = "".join(f'<text x="{x + 10}" y="{y + 34 + 14 * at}">{escape(line)}</text>' for at, line in enumerate(lines))
    return (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
        f'<text class="name" x="{x + 10}" y="{y + 18}">{room}/</text>{text}'
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
