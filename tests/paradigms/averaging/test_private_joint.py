"""Private trainings whose noise holders make together: what a sum has of it, who is trusted, and what is refused."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.aggregation.rounds import HolderRound
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.private.event import JointSampledEvent, SampledEvent
from veilgraph_averaging.private.plan import SampledPlan
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.training import EXTRA, PrivateTraining, to_gradients

from tests import about
from tests.errors import refused
from tests.mpc.aggregation.rounds import NAMES, add_over_links
from tests.paradigms.averaging.jobs import dropping_out, graphs, weights_of_twin
from tests.paradigms.averaging.private_jobs import job as private_job
from tests.paradigms.averaging.private_jobs import known_noise, source
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError, RangeOverflow, VeilgraphError
from veilgraph.core.secrets import system_secrets
from veilgraph.mpc.mask import ring_sum
from veilgraph.privacy import accountant
from veilgraph.privacy.event import from_json, to_json
from veilgraph.privacy.lifetime_costs import price
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

HOLDERS, COLLUDING = 5, 1


def job(*changes: Settings, threshold: int = 4, colluding: int = COLLUDING) -> AveragingJob:
    joint: Settings = {
        "data": {"holders": HOLDERS},
        "averaging": {"threshold": threshold, "privacy": {"joint_noise": {"colluding": colluding}}},
    }
    return private_job(merge(joint, *changes))


def plan_of(settings: AveragingJob) -> SampledPlan:
    assert settings.training_plan is not None
    return settings.training_plan


# What a sum has


def test_any_holders_that_a_sum_is_opened_with_have_all_the_noise_but_for_those_that_collude() -> None:
    settings = job()
    plan = plan_of(settings)
    size, clip = 20_000, plan.settings.clip

    def nothing(number: int) -> Tensor:
        raise AssertionError(number)

    each = [
        plan.paid_by(None, source(name)).sampled_sum(0, nothing, size, 0)
        for name in settings.data.names[: settings.threshold]
    ]
    honest = torch.stack(each[COLLUDING:]).sum(dim=0)
    assert float(honest.std()) == pytest.approx(plan.multiplier * clip, rel=0.02)
    fewer = torch.stack(each[COLLUDING + 1 :]).sum(dim=0)
    assert float(fewer.std()) < 0.9 * plan.multiplier * clip, "one more that colludes takes noise away"
    assert all(torch.equal(one / plan.cell, (one / plan.cell).round()) for one in each)


@contextmanager
def noted() -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """What holders make of a round, and what of it goes under the masks."""
    made, summed = list[Tensor](), list[Tensor]()
    summand, mask = PrivateTraining.summand, HolderRound.mask

    def making(self: PrivateTraining, *given: Any) -> Tensor:
        made.append(summand(self, *given))
        return made[-1]

    def masking(self: HolderRound, sealed: Tensor, encoded: Tensor) -> Tensor:
        summed.append(encoded.clone())
        return mask(self, sealed, encoded)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateTraining, "summand", making)
        patch.setattr(HolderRound, "mask", masking)
        yield made, summed


def test_a_run_is_its_twin_though_one_drops_out_and_its_ledger_says_whom_it_relies_on(tmp_path: Path) -> None:
    settings = job({"train": {"weight_decay": 0.05}})
    plan, dropped = plan_of(settings), {"C": {2: 3}}
    with known_noise(), dropping_out(dropped), noted() as (made, summed):
        run = train(settings, tmp_path / "run")
    assert len(made) == HOLDERS * settings.train.epochs
    assert sorted(each.long().tolist() for each in made) == sorted(each.tolist() for each in summed), "moved, or scaled"
    given = graphs(settings)
    own = {each.party: plan.paid_by(None, source(each.party)) for each in given}
    twin = PlainAveraging(settings, given, own)
    for number in range(1, settings.train.epochs + 1):
        if number == 2:
            PrivateTraining(settings, given[2]).summand(twin.network, own["C"], 1)  # it draws and pays, and is left out
        assert twin.round(number, ["C"] if number == 2 else []) is None
    weights_of_twin(run, twin, settings.data.names)
    for party in settings.data.names:
        lines = (run.path / "parties" / party / "ledger.jsonl").read_text(encoding="utf-8").splitlines()[1:]
        (event,) = {json.dumps(json.loads(line)["event"]) for line in lines}
        said = {"kind": "joint-sampled", "holders": 4, "colluding": 1, "noise_multiplier": 4.0}
        assert said.items() <= json.loads(event).items()
        assert run.summary["privacy"][party]["epsilon_total"] == pytest.approx(plan.epsilon_total)


def test_the_sum_that_is_opened_is_that_of_whole_cells_and_becomes_the_mean_gradient() -> None:
    settings = job({"averaging": {"privacy": {"clip": 0.3, "batch": 7}}, "train": {"weight_decay": 0.1}})
    plan, given = plan_of(settings), graphs(settings)
    network = PlainAveraging(settings, given).network
    weights, drawn = network.vector(), list[Tensor]()
    for graph in given:
        publisher = plan.paid_by(None, system_secrets)
        drawn.append(PrivateTraining(settings, graph).summand(network, publisher, 0))
        assert drawn[-1].dtype == torch.float64
        assert torch.equal(drawn[-1], drawn[-1].round())
    total = torch.stack(drawn).sum(dim=0)
    found = to_gradients(settings, total, weights)
    expected = total[:-EXTRA] * plan.cell / 7 + HOLDERS * 0.1 * weights
    assert torch.allclose(found[:-EXTRA], expected, rtol=1e-12)
    assert found[-EXTRA:].tolist() == [0.0, HOLDERS]
    bare = private_job()
    assert to_gradients(bare, total, weights) is total


def test_whole_numbers_are_summed_as_they_are_and_others_refused() -> None:
    names = NAMES[:4]
    values = {name: torch.tensor([2.0**51 + place, -(2.0**50) + 3, 0.0]).double() for place, name in enumerate(names)}
    found = add_over_links({name: [each] for name, each in values.items()}, 3, bits=0)
    assert torch.equal(found.sums[0].total, ring_sum([each.long() for each in values.values()]))
    moved = add_over_links({name: [each] for name, each in values.items()}, 3, bits=1)
    assert not torch.equal(moved.sums[0].total, 2 * found.sums[0].total), "rounding by a secret would move them"
    with refused(RangeOverflow, key="values"):
        add_over_links({name: [each + 0.5] for name, each in values.items()}, 3, bits=0)


# Whom one trusts


def test_an_epsilon_is_that_of_the_noise_together_and_costs_the_same_for_life() -> None:
    plan = plan_of(job())
    event = plan.event
    assert isinstance(event, JointSampledEvent)
    alone = SampledEvent(event.noise_multiplier, event.sampling_rate, event.terms)
    assert plan.added == pytest.approx(4.0 / math.sqrt(3))
    assert accountant.total({event: 3}, 1e-5) == accountant.total({alone: 3}, 1e-5)
    assert price(event, 3, 1e-5) == price(alone, 3, 1e-5)
    assert from_json(to_json(event)) == event
    assert event != alone
    with refused(ConfigError, key="privacy.joint_noise.colluding"):
        JointSampledEvent(4.0, 0.1, 3, holders=3, colluding=2)


def test_a_party_has_to_accept_that_it_relies_on_others() -> None:
    settings = job()
    total = paradigm_of(settings).privacy.largest_epsilon(settings, "A")
    base = LimitSettings(leakage=("single-updates",), max_epsilon=total + 1, **about.WITH_EDGES, max_delta=1e-5)
    for most, accepted in ((None, False), (2, False), (1, True), (0, True)):
        found = refusal(base.model_copy(update={"min_colluding": most}), settings, "A", epsilon=total)
        assert (found is None) == accepted
        if found is not None:
            assert "averaging.privacy.joint_noise.colluding=1" in found
    bare = private_job()
    assert refusal(base, bare, "A", epsilon=paradigm_of(bare).privacy.largest_epsilon(bare, "A")) is None


def test_a_holder_without_labels_takes_no_part() -> None:
    settings = job()
    graph = graphs(settings)[0]
    bare = replace(graph, labels=None, num_classes=None, train_mask=None, val_mask=None, test_mask=None)
    assert "joint_noise" in PrivateTraining(settings, bare).refuses
    assert not PrivateTraining(settings, graph).refuses
    assert not PrivateTraining(private_job(), bare).refuses


@pytest.mark.parametrize(
    ("holders", "threshold", "colluding", "fits"),
    [
        (5, 4, 1, True),
        (5, 4, 2, True),
        (5, 5, 3, True),
        (5, 3, 1, False),
        (5, 4, 3, False),
        (3, 3, 1, True),
        (4, 3, 2, False),
    ],
)
def test_the_threshold_leaves_noise_and_lets_no_two_sums_be_opened(
    holders: int, threshold: int, colluding: int, fits: bool
) -> None:
    changes: Settings = {"data": {"holders": holders}}
    if fits:
        assert plan_of(job(changes, threshold=threshold, colluding=colluding)).joint is not None
        return
    with refused(ConfigError, key="averaging.privacy.joint_noise.colluding"):
        job(changes, threshold=threshold, colluding=colluding)


def test_no_round_is_opened_with_less_noise_than_was_paid_for(tmp_path: Path) -> None:
    settings, dropped = job(), {"B": {1: 3}, "C": {1: 3}}
    with dropping_out(dropped), pytest.raises(VeilgraphError):
        train(settings, tmp_path / "run")
