"""What every task of paradigm averaging must do. Needs pytest to run, and nothing of it to be imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import ValidationError
from torch import Tensor
from torch.autograd import backward

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.figures import LAST
from veilgraph.protocol.job_file import parse_job
from veilgraph_averaging.network import Averaged, Own
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging
from veilgraph_averaging.tasks import Task

NODES = 12
_TOLERANCE = 1e-9


class TaskConformance:
    """Inherit it in a class that pytest finds, and name a task that is installed or one of ours.

    Attributes:
        model: what is said under ``model``.
    """

    name: ClassVar[str]  # of the task, as jobs have it
    said: ClassVar[Mapping[str, object]] = {}  # what is said under ``averaging.task`` beside that
    model: ClassVar[Mapping[str, object]] = {"dim": 4, "dropout": 0.0, "local": {"model": "gcn", "hops": 1}}

    def graphs(self) -> list[PartyGraph]:
        """Data of two holders and more; by default small graphs with labels."""
        found = []
        for seed, party in enumerate("AB"):
            generator = torch.Generator().manual_seed(seed)
            split = torch.arange(NODES) % 3
            found.append(
                PartyGraph(
                    party,
                    torch.randn(NODES, 3, generator=generator),
                    torch.randint(NODES, (2, 3 * NODES), generator=generator),
                    labels=torch.arange(NODES) // 3 % 2,
                    train_mask=split == 0,
                    val_mask=split == 1,
                    test_mask=split == 2,
                    num_classes=2,
                )
            )
        return found

    def job(self, **said: object) -> AveragingJob:
        """Make a job of the task, over the holders of ``graphs``, with more of its settings."""
        task = {"name": self.name, **self.said, **said}
        return averaging(
            parse_job(
                {
                    "paradigm": "averaging",
                    "precision": "float64",
                    "data": {"holders": [graph.party for graph in self.graphs()]},
                    "averaging": {"task": task},
                    "model": dict(self.model),
                }
            )
        )

    def begun(self) -> tuple[Task[Any, Any], Averaged, list[Own]]:
        """Return the task, its network before the first round, and each holder's prepared data."""
        job = self.job()
        twin = PlainAveraging(job, self.graphs())
        twin.gather()
        streams = [LearningStreams(job.seed, graph.party) for graph in self.graphs()]
        owns = [twin.task.own(graph, each) for graph, each in zip(self.graphs(), streams, strict=True)]
        return twin.task, twin.network, owns

    def test_it_is_found_by_its_name_and_takes_no_others_settings(self) -> None:
        task = self.job().averaging.task
        assert issubclass(task.kind, Task)
        assert self.job().hash() == self.job().hash()
        try:
            task.kind.settings.model_validate({"name": self.name, **self.said, "of_no_task": 1})
        except ValidationError:
            return
        raise AssertionError("a setting of no task is taken")

    def test_a_job_that_says_nothing_selects_by_the_first_figure(self) -> None:
        job = self.job()
        assert job.train.select_by == job.measures.main.name
        assert job.averaging.task.kind.subject.words

    def test_a_network_is_of_its_seed_and_has_weights_alone(self) -> None:
        task, network, _ = self.begun()
        job = self.job()
        again = task.network(LearningStreams(job.seed, SERVER))
        assert torch.equal(again.vector(), network.vector())
        assert not torch.equal(task.network(LearningStreams(job.seed + 1, SERVER)).vector(), network.vector())
        assert not [name for name, _ in again.named_buffers()]
        network.take(2 * again.vector())
        assert torch.equal(network.vector(), 2 * again.vector())

    def test_what_a_holder_has_is_the_same_in_every_session(self) -> None:
        (task, network, owns), (_, _, again) = self.begun(), self.begun()
        with torch.no_grad():
            for own, other in zip(owns, again, strict=True):
                assert torch.equal(task.judging.output(network, own), task.judging.output(network, other))

    def test_examples_give_a_loss_and_all_weights_a_gradient(self) -> None:
        task, network, owns = self.begun()
        assert sum(task.examples(own) for own in owns) > 0
        for own in owns:
            if task.examples(own):
                loss = task.loss(network, own, torch.Generator().manual_seed(0))
                assert math.isfinite(float(loss.detach()))
                backward(loss)
        assert all(weight.grad is not None for weight in network.parameters())

    def test_training_makes_it_better(self) -> None:
        twin = PlainAveraging(self.job(), self.graphs())
        losses = [twin.round(number) for number in range(1, 9)]
        assert losses[-1] is not None
        assert losses[0] is not None
        assert losses[-1] < losses[0]

    def test_tallies_add_up_to_those_of_one_place(self) -> None:
        task, network, owns = self.begun()
        whole = task.join(owns)
        assert task.examples(whole) == sum(task.examples(own) for own in owns)
        with torch.no_grad():
            parts = [_tally(task, network, own) for own in owns]
            total = _tally(task, network, whole)
        assert total.shape == (task.judging.tally_size,)
        assert total.dtype == torch.float64
        assert float((total - torch.stack(parts).sum(dim=0)).abs().max()) < _TOLERANCE

    def test_scores_are_the_figures_that_it_names(self) -> None:
        task, network, owns = self.begun()
        with torch.no_grad():
            scores = task.judging.scores(network, _tally(task, network, task.join(owns)))
            here = task.judging.scores_here(
                network, task.join(owns), task.judging.output(network, task.join(owns)), everything=True
            )
        names = set(here.values)
        for figure in task.measures.figures:
            assert f"val_{figure.name}" in names
        main = task.measures.main.name
        assert f"test_{main}" in set(scores.values)
        assert math.isfinite(scores.selection(main))
        assert set(task.measures.selectable) > {LAST, main}
        nothing = task.judging.scores(network, torch.zeros(task.judging.tally_size, dtype=torch.float64))
        assert nothing.selection(main) == -math.inf or math.isnan(nothing.selection(main))

    def test_predictions_have_a_row_for_each_name(self) -> None:
        task, network, owns = self.begun()
        for own in owns:
            with torch.no_grad():
                found = task.judging.predictions(network, own, task.judging.output(network, own))
            count = len(found.probabilities)
            assert all(len(values) == count for values in found.columns.values())
            assert found.probabilities.shape[1] > 0 or found.columns
            assert found.names is None or len(found.names) == len(set(found.names)) == count
            assert found.rows is None or len(found.rows) == count
            if found.names is None and found.rows is None and found.nodes is None:
                assert count == own.graph.num_nodes


def _tally(task: Task[Any, Any], network: Averaged, own: Own) -> Tensor:
    return task.judging.tally(network, own, task.judging.output(network, own))
