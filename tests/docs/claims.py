"""Sentences of the documentation that promise privacy, and their rows in docs/explanation/claims.md."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from docs.pages import all_pages, find_page
from docs.prose import plain, sentences

ROOT: Final = Path(__file__).parents[2]
CLAIMS: Final = find_page("claims.md")
FIGURES: Final = ("results.md", "gap.md", "canaries.md", "benchmarks.md", "engine-benchmarks.md", "errata.md")
"""Pages of measurements, and of what papers say: they promise nothing of this program."""

PAGES: Final = tuple(
    page
    for page in (ROOT / "README.md", ROOT / "SECURITY.md", *all_pages())
    if page != CLAIMS and page.name not in FIGURES
)
LEAST_WORDS: Final = 3
"""Of a claim: fewer would be found by accident."""

REASONS: Final = ("none: cryptography", "none: access", "none: tests alone")
"""Why no attack on a run's messages would find a claim false; the head of docs/explanation/claims.md explains them."""

TELLS: Final = re.compile(
    r"never (leaves?|sent\b)|learns? (nothing|no more)|told nothing|nothing (leaves|else is sent|that depends on)"
    r"|nobody (but the|else has|learns|can (compute|change|read))|without telling|before anybody sees"
    r"|before (any|an) id|before anything (leaves|was sent|is sent)|only the sum|cannot (read|test|tell|see|learn)\b"
    r"|cannot be (connected|read)\b|(send|tell|open|reveal|read|publishe?|release)s? nothing|sent nothing"
    r"|\bhides\b|(is|are) hidden"
    r"|stays? (at home|at the holder|with|where they are|in the (kit|organisation|party file))"
    r"|(sent|learns?) no more|says? nothing of (its|the)\b|nothing of (h⁰|its data|losing|the nodes)"
    r"|ε (bounds|holds)|end[ -]to[ -]end|its owner only|no other party|not which"
    r"|untestable|gets nobody",
    re.IGNORECASE,
)
"""Words of sentences that promise that somebody does not learn something."""

NO_PROMISES: Final = {
    "What stays with the machine that joins": "of one holder's own machines",
    "Declared ranges and categories are taken as public": "a condition",
    "Run veilgraph budget job.yaml, before anything is sent": "advice",
    "Holders send nothing offline but the set-up": "counts bytes",
    "the evidence must tell nothing, and does": "the words of a verdict that something leaks",
    "a newer one is missing or cannot be read": "of a damaged file",
    "a mask that two of three": "what an audit does not find",
}
"""Words of a sentence that has a tell and promises nothing → why it is none."""


class Claim(NamedTuple):
    """A row of docs/explanation/claims.md."""

    page: str
    words: str
    tests: tuple[str, ...]
    attacks: tuple[str, ...]

    @property
    def pieces(self) -> list[str]:
        """The parts of the words between those left out (" … "), without heads of a table's cells ("[...] ")."""
        return [plain(piece) for piece in re.sub(r"\[[^]]*\] ", "", self.words).split(" … ")]

    def sentences(self) -> list[str]:
        """The sentences of the page that have the words; one, if the row is right."""
        pattern = re.compile(rf"(?<!\w){'.*'.join(map(re.escape, self.pieces))}(?!\w)")
        return [each for each in page_sentences(ROOT / self.page) if pattern.search(each)]


def tells(sentence: str) -> bool:
    """Whether a sentence sounds like a promise, and is not known to be none."""
    return bool(TELLS.search(sentence)) and not any(known in sentence for known in NO_PROMISES)


@cache
def page_sentences(page: Path) -> tuple[str, ...]:
    """All sentences of a page, as they are read."""
    return tuple(map(plain, sentences(page.read_text(encoding="utf-8"))))


@cache
def claims() -> tuple[Claim, ...]:
    """All rows of docs/explanation/claims.md, under the page that their heading leads to."""
    found, page = [], ""
    for line in CLAIMS.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"## \[.*\]\((.*)\)", line):
            page = (CLAIMS.parent / heading[1]).resolve().relative_to(ROOT).as_posix()
        elif row := re.fullmatch(r"\| (.*) \| (`.*`) \| (.*) \|", line):
            tests = tuple(test.strip("`") for test in row[2].split("<br>"))
            found.append(Claim(page, row[1], tests, tuple(row[3].split(", "))))
    return tuple(found)


def file_of(test: str) -> Path:
    """A file of tests, as a row names it: below ``tests``, or a distribution's."""
    return ROOT / test if test.startswith("packages/") else ROOT / "tests" / test


def _skips(node: ast.AST) -> bool:
    """Whether a decorator, a statement or a value is ``pytest.mark.skip`` or ``pytest.skip``, called or not."""
    while isinstance(node, ast.Expr | ast.Call):
        node = node.value if isinstance(node, ast.Expr) else node.func
    return isinstance(node, ast.Attribute) and node.attr == "skip"


@cache
def _running(file: str) -> frozenset[str]:
    """Tests of a file, those in classes left out, that no ``skip`` without a condition keeps from running."""
    body = ast.parse(file_of(file).read_text(encoding="utf-8")).body
    marks = [
        node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any(_skips(each) for node in [*body, *marks] for each in (node.elts if isinstance(node, ast.List) else [node])):
        return frozenset()
    functions = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(
        each.name
        for each in functions
        if each.name.startswith("test_") and not any(map(_skips, [*each.decorator_list, *each.body[:2]]))
    )


def runs(test: str) -> bool:
    """Whether ``file::function`` is a test that is there and runs."""
    file, _, name = test.partition("::")
    return file_of(file).is_file() and name in _running(file)
