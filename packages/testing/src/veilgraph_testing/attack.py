"""What every attack promises: it finds what is there, nothing in noise, and the same every time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, get_args

import numpy as np

from veilgraph.audit.attack import ATTACKS, Attack, AuditContext
from veilgraph.audit.finding import Finding, Outcome, Secret, measure_outcome
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.evidence import Evidence, Sort
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.view import Floats
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph_testing.generators import untouched

LABELLED: Final[PartyId] = "A"
OTHER: Final[PartyId] = "B"
LEVEL: Final = 0.01
"""How often noise may look like a leak: seeds are fixed, so that it does or does not."""
_WIDTH: Final = 64
_STEPS: Final = 12
_JOB: Final[Mapping[str, Any]] = {
    "preset": "paper",
    "data": {"dataset": "synthetic"},
    "model": {"dim": 8, "initial": {"method": "individual"}},
    "train": {"epochs": 2, "patience": None},
}


@cache
def small_run() -> Path:
    """A run of two holders and three classes, trained once for all suites of a process."""
    folder = Path(tempfile.mkdtemp(prefix="veilgraph-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    train(parse_job(_JOB), folder / "run")
    return folder / "run"


class AttackConformance:
    """Inherit it and name an attack that is installed or one of ours.

    Attributes:
        name: of the attack, as findings have it.
        sort: of evidence to try, one that it is mounted on.
        finds: AUC that it reaches at least on the planted leak, read in the better direction.
        granted: the most that it may reach on noise, where what it is granted to know tells of what it is asked by
            itself: nothing by default.
    """

    name: ClassVar[str]
    sort: ClassVar[Sort]
    finds: ClassVar[float] = 0.75
    granted: ClassVar[float] = 0.5

    @property
    def attack(self) -> Attack:
        """The one under test."""
        return ATTACKS[self.name]

    @property
    def target(self) -> PartyId:
        """Whose secret; who has labels where it is after those."""
        return LABELLED if self.attack.of_labels else OTHER

    def case(self, seed: int = 0) -> AuditContext:
        """What an auditor has of a small run."""
        return AuditContext(RunDirectory.open(small_run()), seed=seed, shadows=2)

    def leak(self, case: AuditContext) -> Evidence:
        """Evidence that gives the secret away, as far as an attack of this kind can hope for."""
        graph, random = case.graph(self.target), np.random.default_rng(5)
        hop = self._hop(case)
        if self.sort == "propagation":
            steps = [random.standard_normal((graph.num_nodes, _WIDTH)) for _ in range(_STEPS)]
            return self._evidence(steps=steps, outputs=[hop @ step for step in steps])
        return self._evidence(**self._of(self._secret(case, hop), random))

    def noise(self, case: AuditContext) -> Evidence:
        """Evidence of the same form that is independent of everything."""
        random = np.random.default_rng(6)
        classes = case.labels(self.target)[3] if self.attack.of_labels else _WIDTH
        shape = (case.graph(self.target).num_nodes, classes if self.sort == "posteriors" else _WIDTH)
        steps = [random.standard_normal(shape) for _ in range(_STEPS)]
        if self.sort == "propagation":
            return self._evidence(steps=steps, outputs=[random.standard_normal(shape) for _ in range(_STEPS)])
        if self.sort == "gradients":
            return self._evidence(steps=steps)
        return self._evidence(**self._of(steps[0], random))

    def mounted(self, evidence: Evidence, case: AuditContext) -> Outcome:
        """What the attack says at the server."""
        return self.attack.mount(evidence, case, SERVER, self.target)

    def test_it_says_what_it_is(self) -> None:
        attack = self.attack
        assert attack.secret in get_args(Secret)
        assert attack.sorts
        assert {*attack.sorts} <= {*get_args(Sort)} - {"hidden"}
        assert self.sort in attack.sorts
        assert attack.of_labels or attack.secret not in ("labels", "membership"), "those are of who has labels"

    def test_it_finds_a_planted_leak_and_finds_it_again(self) -> None:
        case = self.case()
        evidence = self.leak(case)
        kept = [each.copy() for each in self._arrays(evidence)]
        with untouched():
            outcome, again = self.mounted(evidence, case), self.mounted(evidence, self.case())
        assert all(np.array_equal(*pair) for pair in zip(kept, self._arrays(evidence), strict=True))
        assert np.array_equal(outcome.scores, again.scores)
        assert np.array_equal(outcome.truth, again.truth)
        assert (outcome.accuracy, outcome.note) == (again.accuracy, again.note)
        assert outcome.scores.shape == outcome.truth.shape
        assert outcome.scores.dtype == np.float64
        assert np.isfinite(outcome.scores).all()
        assert outcome.truth.dtype == np.bool_
        found = self._finding(outcome)
        assert found.value.value >= self.finds
        assert found.verdict is not None
        assert found.verdict.found

    def test_it_has_nothing_to_say_of_noise(self) -> None:
        case = self.case()
        found = self._finding(self.mounted(self.noise(case), case))
        assert found.verdict is not None
        if self.granted > 0.5:
            assert found.value.value <= self.granted
        else:
            assert not found.verdict.found, f"AUC {found.value.value:.3f}, p {found.verdict.p_value:.2g}"

    def _finding(self, outcome: Outcome) -> Finding:
        found = measure_outcome(outcome, seed=0, level=LEVEL)
        return Finding(SERVER, self.target, self.attack.secret, self.name, "planted", permitted=True, **found)

    def _evidence(self, **parts: Any) -> Evidence:  # noqa: ANN401 - fields of an Evidence
        return Evidence(self.sort, "planted", (self.target,), **parts)

    def _of(self, rows: Floats, random: np.random.Generator) -> dict[str, Any]:
        """Rows, in the form of this sort of evidence."""
        if self.sort == "gradients":
            return {"steps": [rows * random.uniform(0.5, 1.5) for _ in range(_STEPS)]}
        if self.sort == "initial":
            return {"rows": rows, "steps": [rows]}
        if self.sort == "posteriors":
            odds = np.exp(rows[:, :_WIDTH] - rows[:, :_WIDTH].max(axis=1, keepdims=True))
            return {"rows": odds / odds.sum(axis=1, keepdims=True)}
        return {"rows": rows}

    def _secret(self, case: AuditContext, hop: Floats) -> Floats:
        """Rows that tell it."""
        random, nodes = np.random.default_rng(7), case.graph(self.target).num_nodes
        noise = random.standard_normal((nodes, _WIDTH))
        what = self.attack.secret
        if what == "edges":
            return np.asarray(hop @ (hop @ noise))
        if what == "features":
            return np.asarray(case.graph(self.target).features.to_dense().double().numpy())
        labels, classes = case.labels(self.target)[0], case.labels(self.target)[3]
        if what == "membership":
            if self.sort == "posteriors":
                sure = np.where(case.members(self.target), 6.0, 0.3)[:, None]
                return np.asarray(sure * np.eye(classes)[np.maximum(labels, 0)] + 0.1 * noise[:, :classes])
            return np.asarray(noise * case.members(self.target)[:, None])
        centres = random.standard_normal((classes, _WIDTH))
        told = centres[np.maximum(labels, 0)] + 0.3 * noise
        return np.asarray(told * case.members(self.target)[:, None] if self.sort == "gradients" else told)

    def _hop(self, case: AuditContext) -> Floats:
        """The mean of a node and its neighbours, [N, N]."""
        graph = case.graph(self.target)
        weights = np.eye(graph.num_nodes)
        weights[graph.edge_index[1].numpy(), graph.edge_index[0].numpy()] = 1.0
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    @staticmethod
    def _arrays(evidence: Evidence) -> Sequence[Floats]:
        rows = [] if evidence.rows is None else [evidence.rows]
        return [*rows, *evidence.steps, *evidence.outputs]
