"""Check the text of the documentation: ``python -m docs.lint``, or ``make docs-lint``.

The rules: a sentence has at most 35 words, all pages together have at most 75,000, the first paragraph of a page names
its reader ("For administrators who ..."), and no term stands for which ``docs/terms.txt`` has another.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from docs.pages import DOCS, all_pages
from docs.prose import blocks, plain, sentences

PAGES: Final = (DOCS.parent / "README.md", DOCS.parent / "SECURITY.md", *all_pages())
MOST_WORDS: Final = 75_000
"""Of all pages: whatever has a letter or digit between blanks, so not the rules of tables."""
SENTENCE_WORDS: Final = 35
_LONG, _ANY_READER, _ANY_TERM = ("proofs.md",), ("README.md", "SECURITY.md", "package.md"), ("glossary.md",)
"""Pages whose sentences may be longer, that need name no reader, and that quote the words of others."""
_READER: Final = re.compile(r"(^|[.!?:] |\bis )[Ff]or \w")


@cache
def terms() -> dict[str, str]:
    """Return each term to avoid, and the term to use."""
    lines = (DOCS / "terms.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" → ") for line in lines if line and not line.startswith("#"))


def faults(page: Path) -> Iterator[str]:
    """Yield what is wrong with the text of a page, but for generated parts. Rows of tables may be of any length."""
    text = re.sub("<!-- table.*?-->.*?<!-- end", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    if page.name not in _ANY_READER and not _READER.search(plain(next(iter(blocks(text)), ""))):
        yield f"{page.name}: the first paragraph does not name the reader (For ...)"
    for sentence in map(plain, sentences(text)):
        words = len(re.findall(r"\w\S*", sentence))
        if words > SENTENCE_WORDS and page.name not in _LONG and not sentence.startswith("|"):
            yield f"{page.name}: {words} words, and {SENTENCE_WORDS} at most: {sentence}"
        for avoided, wanted in () if page.name in _ANY_TERM else terms().items():
            if re.search(rf"\b{avoided}\b", sentence, re.IGNORECASE):
                yield f"{page.name}: {avoided!r} should be {wanted!r}: {sentence}"


def total() -> int:
    """Return the number of words of all pages."""
    return sum(len(re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))) for page in all_pages())


if __name__ == "__main__":
    found = [fault for page in PAGES for fault in faults(page)]
    if (words := total()) > MOST_WORDS:
        found.append(f"docs/ has {words:,} words, and {MOST_WORDS:,} at most")
    print("\n".join(found))  # noqa: T201
    sys.exit(bool(found))
