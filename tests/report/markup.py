"""What a page holds, by the standard library's parser."""

import itertools
import re
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


def loads_nothing(source: str, page: Page) -> None:
    """A page asks for nothing from anywhere, its tables have captions and scroll in a box, its drawings words."""
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    for tag, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "srcset", "data", "poster", "action"):
            assert (attributes.get(key) or "#").startswith("#"), (tag, attributes)
        assert not any(key.startswith("on") for key in attributes), (tag, attributes)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", source)
    policies = [meta["content"] for meta in page.attributes("meta") if "http-equiv" in meta]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    tables = page.within.get("table", [])
    assert len(tables) == len(page.within.get("caption", []))
    assert len(re.findall(r'tabindex="0">\s*<table', source)) == len(tables)
    assert all(cell["scope"] in ("row", "col") for cell in page.attributes("th"))
    drawings = [svg for svg in page.attributes("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawings) == len(page.within["title"]) - 1
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in drawings)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))
    targets = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {link["href"].removeprefix("#") for link in page.attributes("a")} <= targets
