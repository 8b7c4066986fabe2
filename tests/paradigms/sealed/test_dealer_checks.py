"""Sealed jobs whose dealer is checked: what is committed to is what all passes of a session take."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import layers, numbers, saved, scaled, small_graphs, small_job
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.sealed import cut_and_choose
from veilgraph.mpc.sealed.correlations import Stream
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed import roles
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.roles import SealedDealer
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import trained_twin, twin_context
from veilgraph.protocol.costs import Costs
from veilgraph.runtime.launch.jobs import predict, resume, train

OPENED = 2
CHECKED: Settings = {"dealer_checks": OPENED / (1 + OPENED)}
JOBS: dict[str, Settings] = {
    "each": {"model": {"blocks": ["each.2"]}, "train": {"epochs": 7}},
    "standard": merge(STANDARD, {"model": {"blocks": ["neighbours", "pooled.4"]}, "train": {"learning_rate": 0.125}}),
    "released, none predicted": {"release": "holders", "named_nodes": 3, "train": {"batch_size": 3}},
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Chances with which it was drawn whether a dealing is opened: so many are in each session, and one is used."""
    rates = list[float]()

    def drawn(rate: float, secrets: SecretSource) -> bool:
        rates.append(rate)
        return len(rates) % (1 + OPENED) != 0

    monkeypatch.setattr(cut_and_choose, "flip_biased_coin", drawn)
    return rates


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", JOBS)
def test_every_message_of_a_session_is_one_that_was_committed_to(
    name: str, tmp_path: Path, opened: list[float]
) -> None:
    """Or it would have ended: those of a training, of one that goes on, and of a prediction."""
    plain = saved(tmp_path / "data", small_job(2, JOBS[name]), small_graphs())
    job = plain.model_copy(update=CHECKED)
    run = train(job, tmp_path / "run")
    twin = trained_twin(job, scaled(job, small_graphs()))
    for weight, expected in zip(layers(run.path), numbers(twin), strict=True):
        assert float((weight - expected).abs().max()) < 3e-3
    assert len(opened) == 1 + OPENED
    traffic = json.loads((run.path / "traffic.json").read_text())
    sent = Counter[str]()
    for entry in traffic:
        if (entry["kind"], entry["direction"]) == ("commitment", "sent"):
            sent[entry["party"]] += entry["bytes"]
    assert sent == costs(job).stages[0].sent
    with cut_at(3), pytest.raises(CutError):
        train(job, tmp_path / "cut")
    assert resume(tmp_path / "cut").summary["started_at"] == 2
    assert len(opened) == 3 * (1 + OPENED)
    if job.named_nodes is None:
        assert torch.equal(predict(run.path).classes, run.predictions.classes)
        assert len(opened) == 4 * (1 + OPENED)
    assert {*opened} == {job.dealer_checks}


def costs(job: SealedJob) -> Costs:
    context, _ = twin_context(job, small_graphs())
    sizes = replace(context.sizes, asked=0 if job.outcome.predicts_named else None)
    return costs_of(replace(context, data={}, sizes=sizes), job.train.epochs, dealer_checks=job.dealer_checks)


def test_a_job_ends_at_the_first_message_that_was_not_committed_to(tmp_path: Path) -> None:
    """The dealer is named, and nothing is predicted."""
    job, machine = small_job(2, CHECKED), SealedDealer.machine

    def wrong(self: SealedDealer, dealing: cut_and_choose.Dealing) -> Machine:
        made = machine(self, dealing)
        assert isinstance(made, DealerMachine)
        made.dealing.streams["A"] = Stream(bytes(32))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedDealer, "machine", wrong)
        with refused(ProtocolError, code="dealer", party=SERVER):
            train(saved(tmp_path / "data", job, small_graphs()), tmp_path / "run")
    assert not list((tmp_path / "run").rglob("predictions*"))


class HangsUp(Wrapper):
    """Gives no key of a dealing that is opened."""

    @override
    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if (tag.kind, tag.round) == (Kind.COMMITMENT, 3):
            raise CutError
        super().send(to, tag, tensor)


@pytest.mark.cases(1)
@pytest.mark.parametrize("work", ["training", "prediction"])
def test_a_dealer_that_hung_up_when_it_was_opened_does_not_deal_in_that_run_again(
    work: str, tmp_path: Path, opened: list[float]
) -> None:
    """The second session would have used its wrong dealing."""
    job, dealing = saved(tmp_path / "data", small_job(2, CHECKED), small_graphs()), cut_and_choose.dealer_of
    if work == "prediction":
        train(job, tmp_path / "run")

    def hangs_up(link: Link, *arguments: Any) -> DealerMachine:
        return dealing(HangsUp(link), *arguments)

    again = resume if work == "training" else predict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roles, "dealer_of", hangs_up)
        with pytest.raises((CutError, ProtocolError)):
            predict(tmp_path / "run") if work == "prediction" else train(job, tmp_path / "run")
    for _ in range(2):
        with refused(ConfigError, code="refused"):
            again(tmp_path / "run")


def test_dealings_of_unknown_length_cannot_be_committed_to() -> None:
    with refused(ConfigError, key="dealer_checks"):
        small_job(2, CHECKED, {"train": {"select_by": "accuracy"}})
