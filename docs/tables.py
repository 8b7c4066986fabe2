"""Writes the tables of protocol.md and threat-model.md that say what is sent, from the rows of all paradigms.

A table lies between two comments that name it and end it. Marks of claims (claims.md) behind its lines stay there.
Run it with ``make docs``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from veilgraph.core.text import listed
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.messages import Condition, MessageSpec, all_revelations
from veilgraph.protocol.paradigm import PARADIGMS

Line = tuple[str, ...]
Facts = tuple[Condition[Any], ...]
FOLDER: Final = Path(__file__).parent
_MARKS: Final = re.compile(r"(?: <!-- claim: [a-z0-9-]+ -->)+")
_KEY: Final = 4
"""So many of a line's cells tell it from all others; marks stay with them."""


def messages() -> Iterator[str]:
    """What messages look like on the wire, and in which part of a session they are sent."""
    for jobs, rows in _groups().items():
        found: dict[Line, list[MessageSpec[Any]]] = {}
        for row in rows:
            for form in row.forms:
                found.setdefault((row.kind.name, *form), []).append(row)
        lines = [
            (
                kind,
                str(int(same[0].kind)),
                _ways(same),
                tag,
                shape,
                "; ".join([part, *(fact.words for fact in same[0].when if all(fact in row.when for row in same))]),
            )
            for (kind, tag, shape, part), same in found.items()
        ]
        yield from _table(jobs, ("kind", "code", "from → to", "step, round", "dtype, shape", "when"), lines)


def sent() -> Iterator[str]:
    """What messages carry, what protects it, why it may leave, and what it reveals."""
    head = ("kind", "from → to", "when", "what", "protection", "why it may leave, or what follows", "reveals")
    for jobs, rows in _groups().items():
        found: dict[Line, list[MessageSpec[Any]]] = {}
        for row in rows:
            names = ", ".join(f"`{told.name}`" for told in row.reveals)
            when = "; ".join(fact.words for fact in row.when) or "always"
            cells = (when, row.what, row.protection, row.why, names or "—")
            found.setdefault((f"`{row.kind.name}`", *cells), []).append(row)
        yield from _table(jobs, head, [(kind, _ways(same), *cells) for (kind, *cells), same in found.items()])


def revelations() -> Iterator[str]:
    """The names that a party accepts, and the jobs in which each is revealed."""
    accepted = LimitSettings().leakage
    lines = [
        (f"`{name}`{' *' if name in accepted else ''}", statement, "; ".join(_jobs(name)))
        for name, statement in all_revelations().items()
    ]
    yield from _table("", ("name", "who learns what", "in jobs"), lines)


TABLES: Final[Mapping[str, Mapping[str, Callable[[], Iterator[str]]]]] = {
    "protocol.md": {"messages": messages},
    "threat-model.md": {"what is sent": sent, "revelations": revelations},
}
"""Page → the name of a table in it → its lines."""


def renewed(page: str) -> str:
    """A page with the tables as the rows have them."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    for name, lines in TABLES[page].items():
        before, start, rest = text.partition(f"<!-- table: {name} -->\n")
        old, end, after = rest.partition("<!-- end of the table -->\n")
        marks = {_key(line): found[0] for line in old.splitlines() if (found := _MARKS.search(line))}
        new = (f"{line[:-2]}{marks[_key(line)]} |" if _key(line) in marks else line for line in lines())
        text = "".join((before, start, "\n", *(f"{line}\n" for line in new), end, after))
    return text


def _key(line: str) -> Line:
    return tuple(_MARKS.sub("", line).split(" | ")[:_KEY])


def _groups() -> dict[str, list[MessageSpec[Any]]]:
    """Which jobs → the rows that these have, and no others; most widely shared first."""
    users: dict[MessageSpec[Any], list[str]] = {}
    for name, paradigm in PARADIGMS.items():
        for row in paradigm.rows:
            users.setdefault(row, []).append(name)
    found: dict[str, list[MessageSpec[Any]]] = {}
    for row, names in sorted(users.items(), key=lambda item: -len(item[1])):
        jobs = "Every job" if len(names) == len(PARADIGMS) else f"{listed(names).capitalize()} jobs"
        found.setdefault(jobs, []).append(row)
    return found


def _ways(rows: Iterable[MessageSpec[Any]]) -> str:
    ways = dict.fromkeys((row.ends.sender, row.ends.receiver) for row in rows)
    receivers: dict[str, list[str]] = {}
    for sender, receiver in ways:
        receivers.setdefault(sender, []).append(receiver)
    return "; ".join(f"{sender} → {', '.join(found)}" for sender, found in receivers.items())


def _jobs(name: str) -> Iterator[str]:
    """Paradigm by paradigm, the options with which something is revealed."""
    for paradigm in PARADIGMS:
        telling = [row for row in PARADIGMS[paradigm].rows for told in row.reveals if told.name == name]
        words = dict.fromkeys(told.jobs for row in telling for told in row.reveals if told.name == name and told.jobs)
        options = " or ".join(words) or " or ".join(
            ", ".join(fact.words for fact in facts) for facts in _simplified({row.when: None for row in telling})
        )
        if telling:
            yield f"{paradigm}: {options}" if options else paradigm


def _simplified(options: Mapping[Facts, None]) -> Iterable[Facts]:
    """Options of which one has to be true: what differs in opposites alone, or is part of another, is one."""
    for facts in options:
        for fact in facts:
            rest = tuple(each for each in facts if each is not fact)
            if any({*rest, opposite} == {*other} for other in options for opposite in _opposites(fact, other)):
                return _simplified({each: None for each in options if not {*rest} <= {*each}} | {rest: None})
    return [facts for facts in options if not any({*other} < {*facts} for other in options)]


def _opposites(fact: Condition[Any], among: Facts) -> list[Condition[Any]]:
    return [each for each in among if each.opposite is fact or fact.opposite is each]


def _table(heading: str, head: Line, lines: Sequence[Line]) -> Iterator[str]:
    if heading:
        yield from (f"**{heading}**", "")
    for cells in (head, ("---",) * len(head), *lines):
        yield f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"
    yield ""


def main() -> None:
    """Writes all pages."""
    for page in TABLES:
        (FOLDER / page).write_text(renewed(page), encoding="utf-8")


if __name__ == "__main__":
    main()
