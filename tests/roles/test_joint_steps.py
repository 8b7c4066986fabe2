"""Noise that holders make together in every step: what is opened of it, who can take it off, and what refuses it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.roles.federation import NODES, Settings, federate, merge, small_data, small_job, small_parties
from tests.roles.once import job as once_job
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import open_sum
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.noise import granularity
from veilgraph.privacy.plan import Channel
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of

SIGMA, CLIP, GRADIENT_CLIP, STEPS = 2.0, 0.5, 0.01, 12
BITS = {Kind.MASKED: 32, Kind.MASKED_GRADIENT: 40}

Opened = dict[Tag, Tensor]
Summands = dict[PartyId, list[Tensor]]


def job(holders: int, colluding: int, *changes: Settings, **privacy: Any) -> JobSettings:
    noise = {"noise_multiplier": SIGMA, "clip": CLIP, "gradient_clip": GRADIENT_CLIP}
    base: Settings = {
        "model": {"initial": {"method": "individual"}, "local": {"model": "sage-mean"}, "rounds": 2},
        "train": {"select_by": "last"},
        "privacy": {
            "unit": "row",
            "schedule": "every-step",
            **noise,
            "joint_noise": {"colluding": colluding},
            **privacy,
        },
    }
    return small_job(holders, merge(base, *changes))


def opened_in(settings: JobSettings, graphs: list[PartyGraph], monkeypatch: pytest.MonkeyPatch) -> tuple[Opened, Any]:
    """What the server opens in a training, and what every holder put into it: channel → holder → in order."""
    put: dict[Channel, Summands] = {"embeddings": {}, "gradients": {}}
    summand = NoisedPublisher.summand

    def noted(
        self: NoisedPublisher, rows: Tensor, step: int, channel: Channel = "embeddings", finest: float = 0.0
    ) -> Tensor:
        released = summand(self, rows, step, channel, finest)
        put[channel].setdefault(self.plan.party, []).append(released.detach().clone())
        return released

    monkeypatch.setattr(NoisedPublisher, "summand", noted)
    seen = federate(settings, graphs, STEPS).transcripts[SERVER]
    pieces: dict[Tag, list[Tensor]] = {}
    for message in seen:
        if message.receiver == SERVER and message.tag.kind in BITS:
            pieces.setdefault(message.tag, []).append(message.tensor)
    assert {len(each) for each in pieces.values()} == {len(graphs)}
    return {tag: open_sum(each, BITS[tag.kind], torch.float64, "", "") for tag, each in pieces.items()}, put


def without_features(holders: int) -> list[PartyGraph]:
    """Holders whose rows are zero, so that what is opened is noise."""
    data = small_data()
    assert data.x is not None
    data.x = torch.zeros_like(data.x)
    return small_parties(holders, data=data)


def of_channel(opened: Opened, kind: Kind) -> Tensor:
    return torch.stack([opened[tag] for tag in sorted(opened, key=str) if tag.kind is kind])


def total(put: Summands) -> Tensor:
    return torch.stack([torch.stack(each) for each in put.values()]).sum(dim=0)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("holders", "colluding"), [(3, 1), (5, 3)])
def test_a_sum_has_the_noise_of_one_less_what_a_coalition_takes_off(
    holders: int, colluding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server and t holders: σ²C² remains in every step, whole numbers of one grid. With one more, a share less."""
    opened, put = opened_in(job(holders, colluding), without_features(holders), monkeypatch)
    rows = of_channel(opened, Kind.MASKED)
    assert len(rows) == 2 * (STEPS + 1)
    needed = (SIGMA * CLIP) ** 2
    share = needed / (holders - colluding)
    cells = rows / granularity(share**0.5)
    assert torch.equal(cells, cells.round())
    left = total(put["embeddings"])
    assert float(left.var()) == pytest.approx(holders * share, rel=0.08)
    assert float(rows.var()) == pytest.approx(float(left.var()), rel=1e-12)
    names = sorted(put["embeddings"])
    for name in names[:colluding]:
        left = left - torch.stack(put["embeddings"][name])
    assert float(left.var()) == pytest.approx(needed, rel=0.08)
    one_more = torch.stack(put["embeddings"][names[colluding]])
    assert float((left - one_more).var()) == pytest.approx(needed - share, rel=0.08)


def test_rows_that_are_long_beside_their_noise_are_summed_to_the_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the job's precision they would not, and a sum would tell whose are."""
    model: Settings = {"model": {"local": {"model": "appnp"}, "combine": {"bits": 40}}}
    graphs = [replace(graph, features=1000 * graph.features.to_dense()) for graph in small_parties(3)]
    settings = job(3, 1, model, clip=400.0, noise_multiplier=0.001, gradient_clip=4.0)
    opened, put = opened_in(settings, graphs, monkeypatch)
    rows = of_channel(opened, Kind.MASKED) * 2.0 ** (BITS[Kind.MASKED] - 40)
    assert float(rows.abs().max()) > 50
    assert torch.equal(rows.flatten().sort().values, total(put["embeddings"]).flatten().sort().values)
    assert bool((rows % (4 * granularity(0.4 / 2**0.5)) != 0).any()), "they have lost the last places"


def test_gradients_of_rounds_are_summed_so_and_those_of_the_label_holder_have_noise_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, graphs = job(4, 1), small_parties(4)
    opened, put = opened_in(settings, graphs, monkeypatch)
    rows = of_channel(opened, Kind.MASKED_GRADIENT)
    assert len(rows) == STEPS
    whole = (SIGMA * GRADIENT_CLIP) ** 2
    assert float(total(put["gradients"]).var()) == pytest.approx(4 / 3 * whole, rel=0.15)
    assert float(rows.var()) == pytest.approx(float(total(put["gradients"]).var()), rel=1e-9)
    planned = plan(settings, "A")
    assert planned is not None
    deep = planned.mechanism("gradients", alone=True)
    assert deep.variance == pytest.approx(whole, rel=1e-12)


def test_no_summand_is_in_two_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even over the same rows: the difference of two sums would have one holder's shares alone."""
    _, put = opened_in(job(3, 1), without_features(3), monkeypatch)
    for each in put["embeddings"].values():
        rows = torch.cat(each)
        assert len(torch.unique(rows, dim=0)) == len(rows) == len(each) * NODES


@pytest.mark.parametrize(
    ("changes", "privacy", "named"),
    [
        ({"model": {"combine": {"strategy": "concat"}, "rounds": 1}}, {}, "privacy.joint_noise"),
        ({"model": {"combine": {"strategy": "regression"}}}, {}, "model.combine.strategy"),
        ({"model": {"combine": {"masked": False}}}, {}, "privacy.joint_noise"),
        ({"model": {"initial": {"method": "collaborative"}}}, {}, "model.initial.method"),
        ({"model": {"initial": {"method": "secure-sum"}}}, {}, "model.initial.method"),
        ({}, {"mechanism": "laplace"}, "mechanism"),
        ({}, {"mechanism": "james-stein"}, "mechanism"),
        ({}, {"noise_multiplier": 0}, "noise_multiplier"),
        ({}, {"joint_noise": {"colluding": 0}}, "privacy.joint_noise.colluding"),
        ({}, {"joint_noise": {"colluding": 3}}, "privacy.joint_noise.colluding"),
        ({"data": {"holders": 2}}, {}, "privacy.joint_noise.colluding"),
    ],
)
def test_what_makes_no_noise_together_is_refused(changes: Settings, privacy: dict[str, Any], named: str) -> None:
    with refused(ConfigError, key=named):
        job(4, 1, changes, **privacy)


@pytest.mark.parametrize(
    ("changes", "privacy", "named"),
    [
        ({}, {"joint_noise": {}}, "privacy.joint_noise.colluding"),
        *[({}, {"joint_noise": {"colluding": count}}, "privacy.joint_noise.colluding") for count in (-1, 2, 3)],
        ({"model": {"combine": {"masked": False}}}, {}, "privacy.joint_noise"),
        ({"model": {"combine": {"strategy": "concat"}}}, {}, "privacy.joint_noise"),
        ({}, {"mechanism": "laplace"}, "mechanism"),
        ({}, {"mechanism": "james-stein-plus"}, "mechanism"),
        ({}, {"noise_multiplier": 0}, "noise_multiplier"),
        ({}, {"unit": "edge", "aggregation": {"hops": 2, "dim": 8}}, "aggregation.hops"),
    ],
)
def test_what_makes_no_noise_together_once_is_refused(changes: Settings, privacy: dict[str, Any], named: str) -> None:
    with refused(ConfigError, key=named):
        once_job(4, changes, **{"joint_noise": {"colluding": 1}, **privacy})


@pytest.mark.parametrize(
    ("changes", "privacy", "key"),
    [
        ({"model": {"combine": {"bits": 16}}}, {}, "model.combine.bits"),
        ({}, {"gradient_clip": 1e-9}, "privacy.gradient_clip"),
    ],
)
def test_noise_that_the_ring_cannot_hold_exactly_is_refused_before_anything_is_sent(
    changes: Settings, privacy: dict[str, Any], key: str
) -> None:
    settings = job(3, 1, changes, **privacy)
    with refused(ConfigError, code="refused", key=key):
        federate(settings, small_parties(3), 1)
    with refused(ConfigError, key=key):
        paradigm_of(settings).data.check_graphs(settings, small_parties(3))
    one_round = job(3, 1, changes, {"model": {"rounds": 1}}, **privacy)
    if key == "privacy.gradient_clip":
        paradigm_of(one_round).data.check_graphs(one_round, small_parties(3))
