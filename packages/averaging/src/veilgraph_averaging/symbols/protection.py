"""How a report shows the ε of ``averaging.symbols``."""

from __future__ import annotations

from rich.table import Table
from typing_extensions import override

from veilgraph.core.text import listed
from veilgraph.protocol.job import perturbing
from veilgraph.report.protection import (
    BOUND,
    EVERYBODY,
    NO_DELTA,
    PER_RELEASE,
    RESPONSE,
    TOTAL,
    Guarantee,
    PerturbedLabels,
)
from veilgraph.report.tables import table
from veilgraph_averaging.settings import averaging
from veilgraph_averaging.symbols.worth import words_of_worth


class Symbols(PerturbedLabels):
    """Each node's symbol, drawn a single time and sent to the banks at its edges across."""

    @property
    def _all_answer(self) -> bool:
        given = averaging(self.job).averaging.symbols
        return given is not None and given.answers == "all"

    @property
    def _whose(self) -> str:
        return "all nodes" if self._all_answer else "training nodes"

    @override
    def table(self) -> Table:
        epsilon = f"{self.settings.epsilon:g}"
        rows = [(holder, f"symbols of {self._whose}", RESPONSE, epsilon, epsilon) for holder in perturbing(self.job)]
        return table(
            "Symbols",
            ("holder", "releases", "mechanism", f">{PER_RELEASE}", f">{TOTAL}"),
            rows,
            caption="Of one node, drawn a single time in all jobs with this ε; δ = 0.",
        )

    @override
    def notes(self) -> list[str]:
        return [*super().notes(), *words_of_worth(averaging(self.job), None)]

    @override
    def guarantee(self, delta: float | None = None) -> Guarantee:
        covered = "one label, and whether its node is trained on" if self._all_answer else "one label"
        about = (
            ("unit", f"{covered}, at one holder, of one of {self._whose}"),
            ("neighbouring relation", "replacement: the node's own class, or any other"),
            ("δ", NO_DELTA),
            ("mechanism", f"{RESPONSE}, ε {self.settings.epsilon:g}, a single time, at {listed(perturbing(self.job))}"),
            EVERYBODY,
        )
        limits = (
            "Which edges between two holders' nodes both have is in the clear: a holder learns it of its own edges.",
            *(
                []
                if self._all_answer
                else ["Which nodes at such edges are trained on is in the clear (trained-counterparts)."]
            ),
            "No features, edges within a holder, weights or scores are sent.",
            "The same nodes in another job with this ε cost nothing; with another ε, or a new snapshot, they cost as "
            "much again.",
            "Not counted: predictions and scores that a holder hands on, which its own data are in without noise.",
        )
        return Guarantee(f"of {covered}, replacement, against everybody", BOUND, about, limits)
