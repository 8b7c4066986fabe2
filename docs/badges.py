"""Draw the README's badges, docs/figures/badges.svg, from pyproject.toml: ``python -m docs.badges``, or ``make docs``.

No service draws or counts them: each says what the repository says of itself.
"""

import tomllib
from html import escape
from pathlib import Path
from typing import Any, Final

from docs.pages import figure_path

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = figure_path("badges.svg")
_LETTER, _PADDING, _HEIGHT, _GAP = 7, 7, 20, 6  # pixels; 11 px letters are at most 7 wide on average


def badges() -> dict[str, str]:
    """Return what each badge is about, and what it says.

    Raises:
        FileNotFoundError: the package has no py.typed, by which its users' type checkers take our types.
    """
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    minors = [each.removeprefix("Programming Language :: Python :: 3.") for each in found["project"]["classifiers"]]
    versions = [f"3.{minor}" for minor in minors if minor.isdigit()]
    if not (ROOT / "src" / "veilgraph" / "py.typed").is_file():
        raise FileNotFoundError("src/veilgraph/py.typed is missing; restore it, or draw no badge for types")
    typed = "mypy strict" if found["tool"]["mypy"]["strict"] else "mypy"
    return {"licence": found["project"]["license"], "python": " | ".join(versions), "typed": typed}


def draw() -> str:
    """Return the badges side by side as SVG."""
    parts, x = [], 0
    for about, says in badges().items():
        for text, colour in ((about, "#57606a"), (says, "#0b5cad")):
            width = len(text) * _LETTER + 2 * _PADDING
            parts.append(f'<rect x="{x}" width="{width}" height="{_HEIGHT}" fill="{colour}"/>')
            parts.append(f'<text x="{x + width / 2:g}" y="14">{escape(text)}</text>')
            x += width
        x += _GAP
    size = f'viewBox="0 0 {x - _GAP} {_HEIGHT}" width="{x - _GAP}" height="{_HEIGHT}"'
    title = "; ".join(f"{about}: {says}" for about, says in badges().items())
    style = "text { font: 11px sans-serif; fill: #ffffff; text-anchor: middle }"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<title>{escape(title)}</title>\n<style>{style}</style>'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
