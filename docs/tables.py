"""Writes the table of protocol.md and the lists of threat-model.md that say what is sent, from all paradigms' rows.

Each lies between two comments that name it and end it. Run it with ``make docs``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from docs.pages import find_page
from veilgraph.core.text import listed
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.messages import MORE_HOLDERS, TWO_HOLDERS, Condition, MessageSpec, Revelation, all_revelations
from veilgraph.protocol.paradigm import PARADIGMS

Line = tuple[str, ...]
Facts = tuple[Condition[Any], ...]
_LONG: Final = 40
"""Of so many words a statement's parts have a line each."""
_FIRST: Final = "0, 0"
"""Step and round that most messages have, and no line names."""


def messages() -> Iterator[str]:
    """What messages look like on the wire, and in which part of a session they are sent."""
    lines: list[Line] = []
    for jobs, rows in _groups().items():
        forms: dict[Line, list[MessageSpec[Any]]] = {}
        for row in rows:
            for form in row.forms:
                forms.setdefault((row.kind.name, *form), []).append(row)
        found: dict[Line, dict[str, list[str]]] = {}
        for (kind, tag, shape, part), same in forms.items():
            when = "; ".join(
                filter(None, [part, *(fact.words for fact in same[0].when if all(fact in row.when for row in same))])
            )
            message = shape if tag == _FIRST else f"*{tag}*: {shape}"
            found.setdefault((kind, _ways(same)), {}).setdefault(when, []).append(message)
        lines.append((f"**{jobs}**",))
        for (kind, ways), each in found.items():
            texts = (f"{', '.join(alike)}; {when}" for when, alike in each.items())
            lines.append((kind, ways, "<br>".join(texts)))
    yield from _table("", ("kind", "from → to", "*step, round*: type [shape]; when"), lines)


def sent() -> Iterator[str]:
    """What messages carry, under which options, what protects it, and what it reveals."""
    for jobs, rows in _groups().items():
        yield from _list(jobs, _sent_lines(rows))


def revelations() -> Iterator[str]:
    """The names that a party accepts, below the paradigms whose jobs reveal them."""
    accepted = LimitSettings().leakage
    groups: dict[str, list[str]] = {}
    for name, statement in all_revelations().items():
        parts = statement.replace("; ", ";\n  - ") if len(statement.split()) >= _LONG else statement
        said = f"`{name}`{' *' if name in accepted else ''}: {parts}"
        groups.setdefault(_jobs(name), []).append(f"{said} ({how})" if (how := _how(name)) else said)
    for jobs, lines in groups.items():
        yield from _list(jobs, lines)


TABLES: Final[Mapping[str, Mapping[str, Callable[[], Iterator[str]]]]] = {
    "protocol.md": {"messages": messages},
    "threat-model.md": {"what is sent": sent, "revelations": revelations},
}
"""Page → the name of a table in it → its lines."""


def renewed(page: str) -> str:
    """Return a page with the tables as the rows have them."""
    text = find_page(page).read_text(encoding="utf-8")
    for name, lines in TABLES[page].items():
        before, start, rest = text.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end of the table -->\n")
        text = "".join((before, start, "\n", *(f"{line}\n" for line in lines()), end, after))
    return text


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


def _revealing(name: str) -> Iterator[tuple[str, Revelation[Any]]]:
    for paradigm in PARADIGMS:
        for row in PARADIGMS[paradigm].rows:
            yield from ((paradigm, told) for told in row.reveals if told.name == name)


def _jobs(name: str) -> str:
    """The paradigms whose jobs reveal something."""
    return f"{listed([*dict.fromkeys(paradigm for paradigm, _ in _revealing(name))]).capitalize()} jobs"


def _how(name: str) -> str:
    """In which of their jobs, where no message's options say so."""
    return next((told.jobs for _, told in _revealing(name)), "")


def _sent_lines(rows: Iterable[MessageSpec[Any]]) -> Iterator[str]:
    """A line for what one kind carries between the same parties, and one for all kinds that have no data in them."""
    alike: dict[tuple[str, str, Facts, str, str], list[MessageSpec[Any]]] = {}
    for row in rows:
        alike.setdefault((row.kind.name, row.what, row.when, row.protection, _told([row])), []).append(row)
    lines: dict[Line, list[MessageSpec[Any]]] = {}
    for (kind, *_), same in alike.items():
        lines.setdefault(() if _is_empty(same[0]) else (f"`{kind}`", _ways(same)), []).extend(same)
    for start, line in lines.items():
        kinds = dict.fromkeys(f"`{row.kind.name}`" for row in line)
        protections = dict.fromkeys(row.protection for row in line)
        yield f"{', '.join(start)}:{_carried(line)}" if start else f"{', '.join(kinds)}: {', '.join(protections)}"


def _is_empty(row: MessageSpec[Any]) -> bool:
    """Whether a message has no data in it but public facts."""
    return not row.reveals and row.protection in ("random", "public")


def _carried(rows: Sequence[MessageSpec[Any]]) -> str:
    """Options that things have in common, and the things; what protects one, and what it reveals, stands behind it."""
    things: dict[str, list[MessageSpec[Any]]] = {}
    for row in rows:
        things.setdefault(_in_short(row), []).append(row)
    groups: dict[tuple[str, str], list[tuple[str, list[Facts]]]] = {}
    for what, alike in things.items():
        options = [*_simplified({row.when: None for row in alike})]
        groups.setdefault((_protections(alike), _told(alike)), []).append((what, options))
    said, known = list[str](), list[str]()
    for (protection, names), parts in groups.items():
        said.append(f"{_joined(parts, known)} ({'; '.join(filter(None, (protection, names)))})")
        known += [what for what, _ in parts]
    return f" {said[0]}" if len(said) == 1 else "".join(f"\n  - {each}" for each in said)


def _in_short(row: MessageSpec[Any]) -> str:
    """What a message carries, without the words that its protection repeats."""
    words = row.what
    if row.protection == "none":
        words = re.sub(",? in the clear", "", words)
    if row.protection == "mask" or MORE_HOLDERS in row.when or TWO_HOLDERS in row.when:
        words = words.replace("masked ", "")
    return words.removeprefix("shares of the mask of ")


def _protections(rows: Sequence[MessageSpec[Any]]) -> str:
    """What protects a thing: the first of several protections, and the others behind the options that have them."""
    of: dict[str, list[MessageSpec[Any]]] = {}
    for row in rows:
        of.setdefault(row.protection.replace("none", "**none**"), []).append(row)
    first, *others = of
    return "; ".join([first, *(f"{_differing(of[other], rows)}: {other}" for other in others)])


def _told(rows: Sequence[MessageSpec[Any]]) -> str:
    """What a thing reveals whatever the options, and what else with some of them."""
    of: dict[str, list[MessageSpec[Any]]] = {}
    for row in rows:
        for told in row.reveals:
            of.setdefault(f"`{told.name}`", []).append(row)
    always = ", ".join(name for name, telling in of.items() if len(telling) == len(rows))
    some = (f"{_differing(telling, rows)}: {name}" for name, telling in of.items() if len(telling) < len(rows))
    return "; ".join(filter(None, (always, *some)))


def _differing(some: Sequence[MessageSpec[Any]], rows: Sequence[MessageSpec[Any]]) -> str:
    """The options of some of several rows that not all of these have."""
    return _words([tuple(fact for fact in row.when if any(fact not in each.when for each in rows)) for row in some])


def _joined(parts: Sequence[tuple[str, Sequence[Facts]]], known: Sequence[str]) -> str:
    """Things behind the options that all have in common, and their own; "the same" for what stands before them."""
    ways = [facts for _, options in parts for facts in options]
    common = tuple(fact for fact in ways[0] if all(fact in facts for facts in ways))
    above = [max((each for each in known if what.startswith(f"{each},")), key=len, default="") for what, _ in parts]
    rests = {what.removeprefix(start) for start, (what, _) in zip(above, parts, strict=True)}
    if all(above) and len(rests) == 1:
        said = f"the same{rests.pop()}"
    else:
        own: dict[str, list[str]] = {}
        for what, options in parts:
            words = _words([tuple(fact for fact in facts if fact not in common) for facts in options])
            own.setdefault(words, []).append(what)
        said = "; ".join(f"{words}: {', '.join(whats)}" if words else "; ".join(whats) for words, whats in own.items())
    return f"{words}: {said}" if (words := _words([common])) else said


def _words(options: Sequence[Facts]) -> str:
    said = (", ".join(fact.words for fact in facts if fact.words) for facts in options)
    return " or ".join(filter(None, said))


def _simplified(options: Mapping[Facts, None]) -> Iterable[Facts]:
    """Options of which one has to be true: what differs in opposites alone, or is part of another, is one."""
    for facts in options:
        for fact in facts:
            rest = tuple(each for each in facts if each is not fact)
            if any(
                opposite in other and {*other} <= {*rest, opposite}
                for other in options
                for opposite in _opposites(fact, other)
            ):
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


def _list(heading: str, items: Iterable[str]) -> Iterator[str]:
    yield from (f"**{heading}**", "", *(line for item in items for line in f"- {item}".splitlines()), "")


def main() -> None:
    """Writes all pages."""
    for page in TABLES:
        find_page(page).write_text(renewed(page), encoding="utf-8")


if __name__ == "__main__":
    main()
