"""One random job over a pair of sessions."""

import random
from pathlib import Path

from tests.pairs.claims import found_in
from tests.pairs.drawn import drawn
from tests.pairs.sessions import kinds_of, played


def one(paradigm: str, seed: int, folder: Path) -> tuple[str, list[str]]:
    """The kind of a random pair, and what is found in it."""
    draw = random.Random(f"{paradigm}/{seed}")
    job = drawn(paradigm, draw, folder / "data")
    kind = draw.choice(list(kinds_of(job)))
    with played(job, kind, draw, folder) as pair:
        return kind, found_in(pair)
