"""Our paradigms, held to what all of them promise."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import averaging
from veilgraph_testing.paradigm import ParadigmConformance

from tests.paradigms.horizontal import VALUES, ids_of, valued
from veilgraph.graph.dataset import load_named_graphs, load_parts
from veilgraph.graph.party import save_party
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork, parts_of
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.union.settings import union
from veilgraph.paradigms.union.twin import begin_program
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.store.run_directory import RunDirectory

SHORT: Mapping[str, Any] = {"epochs": 3, "patience": None, "checkpoint_every": 1, "select_by": "last"}


class TestVertical(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {"data": {"dataset": "synthetic"}, "model": {"dim": 4}, "train": SHORT}
    processes = False  # tests/conformance/test_jobs.py has them


class TestHorizontal(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {
        "paradigm": "horizontal",
        "data": {"dataset": "synthetic"},
        "model": {"dim": 4, "server": {"dropout": 0.0}},
        "train": SHORT,
    }
    processes = False

    def twin(self, run: RunDirectory) -> Tensor | None:
        settings = horizontal(run.settings)
        parts = load_parts(settings.data, settings.seed)
        network = LayeredNetwork(settings.model, settings.train, parts, seed=settings.seed, dtype=torch.float32)
        for epoch in range(1, settings.train.epochs + 1):
            network.train_step(epoch)
        (own,) = (part for part in parts if part.graph.party == settings.data.label_party)
        ids = torch.unique(torch.cat([part.ids for part in parts]))
        return network.infer()[torch.searchsorted(ids, own.ids)].softmax(dim=1)


class TestHorizontalValues(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {**TestHorizontal.job, **VALUES, "data": {}}
    processes = False

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def saved(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        parts = valued(load_parts(horizontal(parse_job(dict(TestHorizontal.job))).data, 0))
        folder = tmp_path_factory.mktemp("graphs")
        paths = {part.graph.party: folder / f"{part.graph.party}.safetensors" for part in parts}
        for part in parts:
            save_party(part.graph, paths[part.graph.party], ids=ids_of(parts)[part.graph.party])
        cls.job = {**cls.job, "data": {"graphs": {party: str(path) for party, path in paths.items()}}}

    def twin(self, run: RunDirectory) -> Tensor | None:
        settings = horizontal(run.settings)
        found = load_named_graphs(settings.data)
        ids = {graph.party: names for graph, names in found}
        parts, task = parts_of([graph for graph, _ in found], ids), settings.horizontal.task
        network = LayeredNetwork(settings.model, settings.train, parts, seed=settings.seed, task=task)
        for epoch in range(1, settings.train.epochs + 1):
            network.train_step(epoch)
        order = sorted({name for names in ids.values() for name in names})
        rows = [order.index(name) for name in ids[settings.data.label_party]]
        return network.predictions().columns["value"][rows].reshape(-1, 1)


class TestAveraging(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {
        "paradigm": "averaging",
        "data": {"dataset": "synthetic", "holders": 3},
        "precision": "float64",
        "model": {"dim": 4},
        "averaging": {"rule": {"name": "fedprox", "mu": 0.1}, "local_epochs": 2},
        "train": SHORT,
    }
    processes = False
    tolerance = 1e-6

    def twin(self, run: RunDirectory) -> Tensor | None:
        settings = averaging(run.settings)
        parts = load_parts(settings.data, settings.seed)
        network = PlainAveraging(settings, [part.graph for part in parts])
        for epoch in range(1, settings.train.epochs + 1):
            network.round(epoch)
        return network.infer(settings.data.label_party).softmax(dim=1)


class TestNodeDp(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {
        "paradigm": "node-dp",
        "data": {"dataset": "synthetic", "holders": 2},
        "release": {"features": {"epsilon": 4.0, "low": -50, "high": 50}},
        "train": SHORT,
    }
    is_repeatable = processes = False

    def twin(self, run: RunDirectory) -> Tensor | None:
        return None  # what nodes release is random: tests/roles/test_local_learner.py


class TestNodeDpEdges(TestNodeDp):
    job: ClassVar[Mapping[str, Any]] = {
        **TestNodeDp.job,
        "privacy": {"epsilon_total": 4, "unit": "edge", "hops": 2},
    }


class TestUnion(ParadigmConformance):
    job: ClassVar[Mapping[str, Any]] = {
        "paradigm": "union",
        "data": {"dataset": "synthetic", "feature_scaling": "standard"},
        "model": {"network": "linear", "blocks": ["own", "pooled.1"], "directed": False},
        "train": {**SHORT, "learning_rate": 0.5},
    }
    is_repeatable = processes = False  # where nothing is rounded alike, no two runs are the same
    tolerance = 0.02

    def twin(self, run: RunDirectory) -> Tensor | None:
        job = union(run.settings)
        inputs = PARADIGMS["union"].data.load(job)
        program = begin_program(job, inputs.graphs, inputs.ids)
        for step in range(job.train.epochs):
            program.step(step)
        found = program.predict()
        assert found is not None
        own = next(graph for graph in inputs.graphs if graph.party == job.data.label_party)
        return logits_of(found)[: own.common].softmax(dim=1)
