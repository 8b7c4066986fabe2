"""Averaging as a paradigm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.averaging import baselines, words
from veilgraph.paradigms.averaging.costs import costs_of
from veilgraph.paradigms.averaging.holder import AveragingHolder
from veilgraph.paradigms.averaging.private import check_rule
from veilgraph.paradigms.averaging.rows import ROWS
from veilgraph.paradigms.averaging.server import AveragingServer
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.tasks.task import TaskSettings
from veilgraph.paradigms.horizontal.paradigm import SameColumns
from veilgraph.protocol.costs import Costs, PartySizes
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.paradigm import LABELS_ALONE, MAX_CLASSES, MAX_FEATURES, MAX_STEPS, NO_NUMBERS, Range
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row

_MEASURED: Final = 3
"""Holders whose noise together is what ε needs, in research/private_averaging.py."""


class Averaging(SameColumns[AveragingJob]):
    """Every holder trains on a graph of its own; sums of their weights become one model."""

    title: ClassVar[str] = "averaging: graphs of one's own, one model"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS
    way: ClassVar[str] = "labels, averaging"
    begins_with_weights: ClassVar[bool] = True
    has_costs: ClassVar[bool] = True

    def largest_epsilon(self, job: AveragingJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf if job.training_plan is None else job.training_plan.epsilon_total

    def trained_way(self, job: AveragingJob) -> str:
        """Without hops and of zero-out, with what holders learn at home or without it; see ``Paradigm.trained_way``.

        With noise made jointly, of the weights that all have, where as many make it as when it was measured.
        """
        plan = job.training_plan
        joint = None if plan is None else plan.joint
        if plan is not None and plan.settings.neighbours != "zero-out":
            return ""
        if job.model.local.hops or (joint is not None and joint.honest != _MEASURED):
            return ""
        if joint is not None:
            return "private training, noise made jointly by three"
        return f"private training{'' if job.averaging.at_home is None else ', then at home'}"

    def privacy_limits(self, job: AveragingJob) -> list[str]:
        """What a holder learns at home, which is nobody's but its own; see ``Paradigm.privacy_limits``."""
        if job.averaging.at_home is None:
            return []
        return [
            "What a holder has learnt at home after the last round (at_home in its model file, and its predictions) "
            "has no noise: ε holds as long as it keeps these."
        ]

    def unbounded(self, job: AveragingJob) -> str:
        if job.label_privacy is not None:
            return LABELS_ALONE
        return "without averaging.privacy its weights are not noised: give averaging.privacy.epsilon_total"

    def costs(self, job: AveragingJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
        return costs_of(job, sizes)

    def stated(self, job: AveragingJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party != SERVER:
            fields |= {"steps": (0, MAX_STEPS), "features": (1, MAX_FEATURES), "classes": (0, MAX_CLASSES)}
        return fields

    def check_graphs(self, job: AveragingJob, graphs: Sequence[PartyGraph]) -> None:
        """A private training's rule on neighbours; see ``Paradigm.check_graphs``."""
        for graph in graphs:
            check_rule(job, graph)

    def role(self, session: Session, aligned: Aligned) -> Role:
        return AveragingServer(session) if aligned.graph is None else AveragingHolder(session, aligned.graph)

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        (graph,) = (graph for graph in inputs.graphs if graph.party == holder)
        return baselines.alone(averaging(inputs.settings), graph, progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        return baselines.pooled(averaging(inputs.settings), inputs.graphs, progress)

    def describe(self, job: AveragingJob) -> list[str]:
        return words.describe(job)

    def collusion(self, job: AveragingJob) -> str:
        """What parties could find out that work together, in a sentence."""
        return (
            f"The server and {job.threshold} holders together could undo the masks of the others, and so read what a "
            "single holder sent; fewer can not."
        )

    def server_part(self, job: AveragingJob) -> str:
        return "opens sums of weights; has no data"

    def predicts(self, job: AveragingJob, classes: int | None) -> str:
        task = job.averaging.task
        return super().predicts(job, classes) if task.name == TaskSettings().name else task.kind.words


AVERAGING: Final = Averaging()
