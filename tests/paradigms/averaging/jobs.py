"""Small averaging jobs, their twins, and runs in which holders drop out."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.settings import AveragingJob, averaging

from tests.mpc.aggregation.rounds import DropsOut, GivesUp
from tests.roles.federation import Settings, merge
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

NAMES = "ABCD"
EPOCHS = 4
SPLITS = ("train_", "val_", "test_")
RULES: Mapping[str, Settings] = {
    "fedavg": {},
    "fedavg, server rate": {"averaging": {"rule": {"name": "fedavg", "server_rate": 0.5}}},
    "fedprox": {"averaging": {"rule": {"name": "fedprox", "mu": 0.3}}},
    "fedsgd": {"averaging": {"rule": {"name": "fedsgd"}, "local_epochs": 1}, "train": {"learning_rate": 0.5}},
    "fedsgd, momentum": {
        "averaging": {"rule": {"name": "fedsgd", "momentum": 0.7}, "local_epochs": 1},
        "train": {"learning_rate": 0.1},
    },
    "fedadam": {"averaging": {"rule": {"name": "fedadam", "server_rate": 0.05}}},
}
Dropped = Mapping[PartyId, Mapping[int, int]]
"""Holder → number of a sum → the first message that it does not send in it."""


def job(*changes: Settings) -> AveragingJob:
    base: Settings = {
        "paradigm": "averaging",
        "precision": "float64",
        "timeout_s": 30,
        "data": {"dataset": "synthetic", "holders": len(NAMES)},
        "model": {"dim": 4, "dropout": 0.1, "local": {"model": "gcn", "hops": 1}},
        "averaging": {"rule": {"name": "fedavg"}, "local_epochs": 2, "patience_s": 5},
        "train": {"epochs": EPOCHS, "patience": None, "checkpoint_every": 1},
    }
    return averaging(parse_job(merge(base, *changes)))


def graphs(settings: AveragingJob) -> list[PartyGraph]:
    return [part.graph for part in load_parts(settings.data, settings.seed)]


def sums_of(epoch: int) -> tuple[int, int]:
    """Numbers of the sums of weights and of scores of an epoch."""
    return 2 * epoch - 1, 2 * epoch


def twin_of(
    settings: AveragingJob, dropped: Dropped | None = None, given: Sequence[PartyGraph] | None = None
) -> tuple[PlainAveraging, list[float | None], list[Scores]]:
    """The twin after all rounds, and the loss and the scores of each; sums are numbered as in a run."""
    twin, lost = PlainAveraging(settings, graphs(settings) if given is None else given), dropped or {}
    before, losses, scores = len(twin.task.sums_before.sizes), list[float | None](), list[Scores]()
    twin.gather([absent(lost, 1 + place) for place in range(before)])
    for epoch in range(1, settings.train.epochs + 1):
        weights, scored = sums_of(epoch)
        losses.append(twin.round(epoch, absent(lost, before + weights)))
        scores.append(twin.scores(absent(lost, before + scored)))
    return twin, losses, scores


def absent(dropped: Dropped, number: int) -> Collection[PartyId]:
    """Whose values are not in a sum: message 3 has them."""
    return [holder for holder, moments in dropped.items() if moments.get(number, 6) <= 3]


@contextmanager
def dropping_out(dropped: Dropped) -> Iterator[None]:
    """Jobs in threads, in which holders lose messages, and the server does not wait for these."""
    link = MemoryHub.link

    def wrapped(self: MemoryHub, party: PartyId) -> Link:
        end = link(self, party)
        return GivesUp(end, dropped) if party == SERVER else DropsOut(end, dropped.get(party, {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryHub, "link", wrapped)
        yield


def same_as_twin(
    run: TrainResult,
    settings: AveragingJob,
    dropped: Dropped | None = None,
    given: Sequence[PartyGraph] | None = None,
) -> None:
    """Losses, figures, and of the last epoch's weights all that there is, are the twin's."""
    twin, losses, scores = twin_of(settings, dropped, given)
    for record, loss in zip(run.metrics, losses, strict=True):
        assert record.get("loss") == (None if loss is None else pytest.approx(loss, abs=1e-6))
    figures_of_twin(run, settings, twin, scores)
    if settings.train.select_by != "last":
        return
    weights_of_twin(run, twin, (*settings.data.names, SERVER))
    predicts_as_twin(run, settings, twin, (graphs(settings) if given is None else given)[0])


def weights_of_twin(run: TrainResult, twin: PlainAveraging, parties: Iterable[PartyId]) -> None:
    """All of these have them."""
    for party in parties:
        weights = load_tensors(RunDirectory.open(run.path).party(party).model_path)[0]
        for name, weight in twin.network.state_dict().items():
            assert close(weights[f"network.{name}"], weight), (party, name)


def figures_of_twin(run: TrainResult, settings: AveragingJob, twin: PlainAveraging, scores: Sequence[Scores]) -> None:
    """Every epoch has the twin's figures, no fewer and no others, and the last epoch's weights have all that there are.

    Args:
        run: of the job.
        settings: of the job.
        twin: after all rounds.
        scores: of the twin's rounds.
    """
    for record, scored in zip(run.metrics, scores, strict=True):
        told = scored.of_epoch(settings.train.select_by).record()
        assert {name for name in record if name.startswith(SPLITS)} == told.keys()
        for name, value in told.items():
            assert record[name] == pytest.approx(value, abs=1e-6), name
    if settings.train.select_by == "last":
        for name, value in twin.scores().values.items():
            assert run.summary[name] == pytest.approx(value, abs=1e-6), name


def predicts_as_twin(run: TrainResult, settings: AveragingJob, twin: PlainAveraging, graph: PartyGraph) -> None:
    """The network's own probabilities are the twin's; calibrated ones and classes follow from this graph's own nodes.

    Args:
        run: of the job.
        settings: of the job.
        twin: after all rounds.
        graph: of the label party.
    """
    found, mine = run.predictions, twin.predictions(graph.party)
    own = twin.task.own(graph, LearningStreams(settings.seed, graph.party))
    calibration = twin.task.judging.calibration(twin.network, own, found.uncalibrated)
    assert found.columns.keys() == mine.columns.keys()
    assert all(close(found.columns[name], values) for name, values in mine.columns.items())
    assert close(found.uncalibrated, mine.probabilities)
    likely = mine.probabilities
    if calibration is None:
        assert found.calibration is None
        assert torch.equal(found.probabilities, found.uncalibrated)
    else:
        likely = calibration.of(likely)
        assert close(found.probabilities, likely)
        assert not close(found.probabilities, found.uncalibrated)
    if likely.shape[1]:
        assert torch.equal(found.classes, likely.argmax(dim=1))


def close(one: Tensor, other: Tensor) -> bool:
    """Of one shape, and alike to 1e-6, as the protocol's fixed point allows."""
    if one.shape != other.shape:
        return False
    return not one.numel() or float((one.double() - other.double()).abs().max()) < 1e-6
