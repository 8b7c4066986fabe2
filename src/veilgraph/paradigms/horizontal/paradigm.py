"""SAPGNN as a paradigm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import torch

from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.words import listed
from veilgraph.graph.party import PartyGraph, check_names
from veilgraph.paradigms.horizontal import baselines, inputs, words
from veilgraph.paradigms.horizontal.collecting import check_columns_here, collect
from veilgraph.paradigms.horizontal.holder import HorizontalHolder
from veilgraph.paradigms.horizontal.regression import VALUE_WORDS
from veilgraph.paradigms.horizontal.rows import COLUMNS, ROWS
from veilgraph.paradigms.horizontal.server import HorizontalServer
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import LABELS_ALONE, MAX_CLASSES, MAX_FEATURES, MAX_STEPS, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row
from veilgraph.tables.feature_settings import CategoricalFeatures, NumericFeatures

J = TypeVar("J", bound=JobSettings)


class SameColumns(Paradigm[J]):
    """Holders of the same columns, each with nodes and answers of its own; all of them judge."""

    has_privacy: ClassVar[bool] = False
    protects: ClassVar[tuple[str, ...]] = ("label",)

    def told_by_tables(self, job: J, features: Sequence[NumericFeatures | CategoricalFeatures]) -> dict[str, str]:
        filled = any(feature.missing == "mean" for feature in features)
        return {COLUMNS.name: "nodes.features with missing=mean"} if filled else {}

    def load(self, job: J) -> Inputs:
        return inputs.load(job)

    def label_party(self, job: J, graphs: Sequence[PartyGraph]) -> PartyId:
        check_names([graph.party for graph in graphs])
        inputs.check_own(graphs)
        return job.data.label_holder or graphs[0].party

    def accept(self, job: J, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        return inputs.accept(job, graphs, ids)

    def check_tables(self, job: J) -> None:
        check_columns_here(job)

    def prepare(self, own: Preparation) -> Prepared:
        return collect(own)

    def part_of(self, job: J, holder: PartyId) -> str:
        return "evaluator" if holder == job.data.label_party else "holder"

    def verdict(self, job: J, what: str, nodes: str) -> str:
        scored = job.data.label_party
        names = listed(job.data.names)
        return f"{names} trained one model together that predicts {what}; {scored} scored it on its {nodes}."


class Horizontal(SameColumns[HorizontalJob]):
    """Holders of the same columns train one network, layer by layer; what they add is pooled at a server."""

    title: ClassVar[str] = "horizontal: the same columns, different nodes"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS
    way: ClassVar[str] = "labels, horizontal"

    def largest_epsilon(self, job: HorizontalJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf

    def unbounded(self, job: HorizontalJob) -> str:
        if job.label_privacy is not None:
            return LABELS_ALONE
        return "paradigm=horizontal has no differential privacy but label_privacy's: take that, or vertical"

    def stated(self, job: HorizontalJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party != SERVER:
            fields |= {"steps": (0, MAX_STEPS), "features": (1, MAX_FEATURES), "classes": (0, MAX_CLASSES)}
            fields["edge_columns"] = (0, MAX_FEATURES if job.takes_edge_features else 0)
        return fields

    def role(self, session: Session, aligned: Aligned) -> Role:
        if aligned.graph is None:
            return HorizontalServer(session)
        return HorizontalHolder(session, aligned.graph, aligned.ids or ())

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        parts = baselines.parts_of(inputs.graphs, inputs.ids)
        (part,) = (part for part in parts if part.graph.party == holder)
        found = baselines.alone(horizontal(inputs.settings), part, progress)
        if found is None:
            return None
        rank = baselines.places_of(inputs.ids)[holder].argsort().argsort()
        return replace(found, output=found.output[rank])

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        """Of every holder's rows in turn: a node of several holders stands there more than once."""
        parts, places = baselines.parts_of(inputs.graphs, inputs.ids), baselines.places_of(inputs.ids)
        found = baselines.pooled(horizontal(inputs.settings), parts, progress)
        rows = torch.cat([places[graph.party] for graph in inputs.graphs])
        return replace(found, output=found.output[rows])

    def describe(self, job: HorizontalJob) -> list[str]:
        return words.describe(job)

    def predicts(self, job: HorizontalJob, classes: int | None) -> str:
        return VALUE_WORDS if job.horizontal.task.is_values else super().predicts(job, classes)


HORIZONTAL: Final = Horizontal()
