"""Whether holders of own nodes are better off together or alone, as their own validation nodes say."""

from __future__ import annotations

from veilgraph.core.tensor_file import Record
from veilgraph.core.words import listed
from veilgraph.protocol.figures import Measures


def alone_words(summary: Record, measures: Measures) -> list[str]:
    """In sentences; none where nothing was trained alone.

    Args:
        summary: of a run.
        measures: of its job.
    """
    main, better, told = measures.main, list[str](), list[str]()
    for party, found in summary.get("alone", {}).items():
        together, alone = (found[way].get(f"val_{main.name}") for way in ("together", "alone"))
        if together is None or alone is None:
            continue
        if alone != together and (alone > together) == main.rises:
            told.append(
                f"{party} is better off alone: on its own validation {measures.of} its {main.title} is "
                f"{main.shown(alone)} alone and {main.shown(together)} with this model, on its test {measures.of} "
                f"{main.shown(found['alone'].get(f'test_{main.name}'))} and "
                f"{main.shown(found['together'].get(f'test_{main.name}'))}."
            )
        else:
            better.append(party)
    if better:
        are = "is" if len(better) == 1 else "are"
        told.append(f"{listed(better)} {are} no worse off with this model than alone, by own validation {measures.of}.")
    return told
