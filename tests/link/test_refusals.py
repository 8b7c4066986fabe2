"""Refusals in a log: bounded lines and memory, and no refusal that never leaves a line."""

from collections.abc import Callable

from veilgraph.link.refusals import EVERY_S, MAX_KINDS, MAX_SOURCES, RefusalLog, Source


class Log:
    """What was logged, and what is to be called later; nothing waits."""

    def __init__(self) -> None:
        self.lines: list[tuple[Source, str]] = []
        self.later: list[Callable[[], None]] = []
        self.refusals = RefusalLog(lambda source, words: self.lines.append((source, words)), self._call)

    def _call(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == EVERY_S
        self.later.append(call)

    def minute(self) -> list[str]:
        """Lines of the next minute's end."""
        self.lines.clear()
        due, self.later = self.later, []
        for call in due:
            call()
        return [words for _, words in self.lines]


def test_a_flood_of_kinds_silences_no_later_refusal() -> None:
    """The attack: after 10,000 made-up kinds a further attempt of that name left no line."""
    log = Log()
    for number in range(20_000):
        log.refusals.add(("C",), number, f"kind {number}")
    assert len(log.lines) == MAX_KINDS
    assert log.minute() == [f"{20_000 - MAX_KINDS} more of C, the last: kind 19999"]
    assert log.minute() == []
    log.refusals.add(("C",), "another", "the real attempt")
    assert log.minute() == ["1 more of C, the last: the real attempt"]


def test_a_source_cannot_use_up_anothers_lines() -> None:
    log = Log()
    for number in range(20_000):
        log.refusals.add(("C", "A"), number, "x")
    log.lines.clear()
    log.refusals.add(("C", "B"), 1, "on B")
    log.refusals.add(("D",), 1, "by D")
    assert log.lines == [(("C", "B"), "on B"), (("D",), "by D")]


def test_memory_is_bounded_and_further_sources_are_counted_together() -> None:
    log = Log()
    for number in range(3 * MAX_SOURCES):
        log.refusals.add((f"S{number}",), 1, f"by S{number}")
    assert len(log.refusals._sources) == MAX_SOURCES + 1
    assert len(log.lines) == MAX_SOURCES + 1
    assert log.minute() == [f"{2 * MAX_SOURCES - 1} more of further sources, the last: by S{3 * MAX_SOURCES - 1}"]


def test_the_same_again_is_counted_each_minute_and_at_the_end() -> None:
    log = Log()
    for _ in range(5):
        log.refusals.add(("C",), "k", "again")
    assert log.lines == [(("C",), "again")]
    assert len(log.later) == 1
    assert log.minute() == ["4 more of C, the last: again"]
    log.refusals.add(("C",), "k", "again")
    log.lines.clear()
    log.refusals.close()
    log.refusals.close()
    assert log.lines == [(("C",), "1 more of C, the last: again")]


def test_a_stranger_s_words_stay_on_one_line_of_bounded_length() -> None:
    log = Log()
    log.refusals.add(("C",), "k", "x\n2026-01-01 forged line\x1b[2J\u202e" + "y" * 10_000)
    ((_, words),) = log.lines
    assert words.isprintable()
    assert words.startswith("x\\n2026")
    assert len(words) == 1000
