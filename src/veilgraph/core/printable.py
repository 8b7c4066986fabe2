"""Text of a stranger, or of a table, for a terminal, a log or an error: nothing in it can move a cursor or hide."""

from __future__ import annotations


def printable(text: object, characters: int | None = None) -> str:
    r"""Return one line in which every character shows itself.

    Control characters, escape sequences, line breaks, text direction marks and lone surrogates become their escapes,
    as ``\x1b``.

    Args:
        text: of anybody.
        characters: longest result; the rest is cut off.
    """
    given = str(text) if characters is None else str(text)[:characters]
    shown = given if given.isprintable() else "".join(map(_shown, given))
    return shown[:characters]


def printable_lines(text: object) -> str:
    """Return the same for text of several lines, whose line breaks and tabs stay."""
    given = str(text)
    return given if given.isprintable() else "".join(each if each in "\n\t" else _shown(each) for each in given)


def _shown(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
