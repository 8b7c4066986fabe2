"""Sentences of a page in Markdown, for the checks of the documentation."""

import re
from collections.abc import Iterator
from typing import Final

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])([*)]*)\s+(?=[A-Z*`(\[ΔΣε∎—])")


def blocks(text: str) -> list[str]:
    """Return the paragraphs, the items of lists and the rows of tables, a line each, without code and headings."""
    found: list[list[str]] = [[]]
    for line in _lines(text):
        item = re.match(r"(?:[-*]|\d+\.) ", line)
        if not line or item or line.startswith("|"):
            found.append([])
        if line:
            found[-1].append(line[item.end() :] if item else line)
    return [" ".join(block) for block in found if block]


def sentences(text: str) -> list[str]:
    """Return the sentences. A row of a table is one, and so is an item of a list that has no full stop."""
    parted = (each if each.startswith("|") else _SENTENCE_END.sub(r"\1\n", each) for each in blocks(text))
    return [sentence for each in parted for sentence in each.split("\n") if sentence]


def plain(text: str) -> str:
    """Return the words as a reader sees them: no targets of links, no emphasis, one space between words."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\s+", " ", re.sub(r"[*`]", "", shown)).strip()


def _lines(text: str) -> Iterator[str]:
    """Text without code, headings, comments and heads of tables; an empty line where something was."""
    fenced = code = False
    before = ""
    for line, below in zip(lines := text.splitlines(), [*lines[1:], ""], strict=True):
        if line.lstrip().startswith("```"):
            fenced, code = not fenced, False
        code = line.startswith("    ") and (code or not before.strip()) if line.strip() else code
        before = line
        head = any(re.match(r"\s*\|[-:| ]+\|$", each) for each in (line, below))
        yield "" if fenced or code or head or line.lstrip().startswith(("```", "#", "<!--")) else line.strip()
