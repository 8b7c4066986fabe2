"""Files of lines in which each names the one before it, and what tells that the first lines are still the same.

A line of such a file is a JSON object on a line of its own; its ``previous`` is the SHA-256 of the line before, so that
whoever changes, removes or swaps lines breaks the chain. Lines cut off at the end leave a shorter, whole chain: a
``head`` that others keep tells of those.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from pydantic_core import from_json

from veilgraph.core.errors import RunError


def digest(line: bytes) -> str:
    """SHA-256 of a line without its newline."""
    return hashlib.sha256(line.removesuffix(b"\n")).hexdigest()


def whole_lines(path: Path) -> list[bytes]:
    """Read a file's lines that end in a newline, [] where the file is missing; ``RunError``: it cannot be read."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); make it readable") from error
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def drop_torn(path: Path) -> None:
    """Cut off a line that a kill tore: its write had not returned, and nobody has relied on it. Raises ``OSError``."""
    with path.open("r+b", buffering=0) as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            file.truncate(whole)
            os.fsync(file.fileno())


def check_chain(path: Path, lines: Sequence[bytes]) -> None:
    """Check that every line but the first names the one before it; the ``RunError`` names the first that does not."""
    for number, (before, line) in enumerate(pairwise(lines), start=2):
        with suppress(ValueError):
            content = from_json(line)
            if isinstance(content, dict) and content.get("previous") == digest(before):
                continue
        raise RunError(
            f"{path}, line {number}: does not follow from line {number - 1}: one of them was changed, removed or "
            "moved; restore the file from a copy that has every line"
        )


class Heads:
    """Keyed digests of a file's first lines for others to keep, who can neither read the lines nor test a guess.

    ``head(n)`` is an HMAC-SHA256 under ``salt`` (32 secret bytes) of ``about``, n, and the first n lines' SHA-256.
    """

    def __init__(self, salt: bytes, about: Sequence[str], lines: Sequence[bytes]) -> None:
        self._salt, self._about = salt, tuple(about)
        running = hashlib.sha256()
        self._digests = [running.digest()]
        for line in lines:
            running.update(line)
            self._digests.append(running.digest())

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self._digests) - 1

    def head(self, lines: int) -> str | None:
        """Return the HMAC of that many first lines, 64 hexadecimal digits; None where there are fewer lines."""
        if lines > self.lines:
            return None
        content = json.dumps([*self._about, lines, self._digests[lines].hex()]).encode()
        return hmac.digest(self._salt, content, "sha256").hex()
