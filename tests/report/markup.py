"""What a page holds, by the standard library's parser."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "link", "img", "input", "hr"}
DRAWN = {"line", "polyline", "circle", "path", "rect"}
"""Elements of SVG that the page closes at once."""


class Page(HTMLParser):
    """Elements, text and links of a page; a tag that is closed out of turn is refused."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.within: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.within.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in DRAWN, tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of turn at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        for tag in set(self.open):
            self.within[tag][-1] += data

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag: str) -> list[dict[str, Any]]:
        """Of all elements with this tag."""
        return [attributes for name, attributes in self.elements if name == tag]
