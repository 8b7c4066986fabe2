"""What ``preset: auto`` chooses for private training in averaging, and the rate that it works out."""

import math
from typing import Any

import pytest
from veilgraph_averaging.settings import LARGEST_RATE, MOMENTUM, ROUNDS, WANDER, AveragingJob, averaging

from tests import nightly
from tests.errors import refused
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job_file import parse_with_choices

GIVEN: Settings = {
    "paradigm": "averaging",
    "preset": "auto",
    "data": {"dataset": "synthetic", "holders": 4, "split": [0.5, 0.25, 0.25]},
    "averaging": {"privacy": {"epsilon_total": 1.0, "batch": 500}},
}


ROUNDS_OF_ALL: Settings = {"model": {"dim": 16}}
"""Of a network with a hidden layer, over many rounds."""


def auto(*changes: Settings) -> AveragingJob:
    return averaging(parse_with_choices(merge(GIVEN, *changes))[0])


def privacy(**said: object) -> Settings:
    return {"averaging": {"privacy": said}}


@pytest.mark.parametrize(
    ("said", "dim", "rounds", "momentum"),
    [({}, 0, 1, 0.0), (ROUNDS_OF_ALL, 16, ROUNDS, MOMENTUM), ({"train": {"epochs": 9}}, 16, 9, MOMENTUM)],
)
def test_a_job_that_says_an_epsilon_and_a_batch_alone_is_whole(
    said: Settings, dim: int, rounds: int, momentum: float
) -> None:
    job, chosen = auto(said), {each.key: each.value for each in parse_with_choices(merge(GIVEN, said))[1]}
    assert job.averaging.privacy is not None
    assert job.averaging.at_home is not None
    assert job.averaging.privacy.sampling_rate == 1
    assert (job.model.local.hops, job.data.feature_scaling, job.data.stratify) == (0, "length", False)
    assert job.averaging.rule.model_dump() == {"name": "fedsgd", "momentum": momentum}
    assert (job.model.dim, job.train.epochs, job.train.select_by, job.train.patience) == (dim, rounds, "last", None)
    assert chosen["train.learning_rate"] == job.train.learning_rate
    assert parse_with_choices(job.model_dump(mode="json"))[0].hash() == job.hash()


def test_with_less_noise_of_each_the_rate_is_larger_by_as_much() -> None:
    """Of four holders that must all be there each adds 1/√3 of σ."""
    rates = [
        auto(ROUNDS_OF_ALL, privacy(epsilon_total=0.1, **more), own).train.learning_rate
        for more, own in (({}, {}), ({"joint_noise": {"colluding": 1}}, {"averaging": {"threshold": 4}}))
    ]
    assert rates[1] == pytest.approx(rates[0] * math.sqrt(3), rel=5e-3)


def test_what_a_job_says_stays() -> None:
    job = auto({"train": {"learning_rate": 0.7, "epochs": 9}, "model": {"dim": 5}}, {"averaging": {"at_home": None}})
    assert (job.train.learning_rate, job.train.epochs, job.model.dim, job.averaging.at_home) == (0.7, 9, 5, None)


def test_class_sums_need_no_batch_and_then_a_small_delta_fits() -> None:
    job = auto(privacy(batch=None))
    assert job.averaging.privacy is not None
    assert job.averaging.privacy.delta_of_batch == 1e-6
    assert auto(privacy(batch=None, delta=1e-5)).averaging.privacy.delta_of_batch == 1e-5  # type: ignore[union-attr]


def wander(job: AveragingJob, holders: int = 4) -> float:
    """How far the noise of all rounds moves a weight, by the noise that is really added."""
    plan, own, rule = job.training_plan, job.averaging.privacy, job.averaging.rule.model_dump()
    assert plan is not None
    assert own is not None
    step = job.train.learning_rate / (1 - rule["momentum"])
    moved: float = step * math.sqrt(job.train.epochs) * plan.multiplier * own.clip / (own.divisor * math.sqrt(holders))
    return moved


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": {"epochs": 20}},
        privacy(epsilon_total=4.0, batch=200),
        privacy(batch=1000),
        privacy(clip=0.25),
        privacy(epsilon_total=0.1),
        {"data": {"holders": 9}},
        {"averaging": {"rule": {"name": "fedsgd", "momentum": 0.0}}},
        privacy(epsilon_total=None, noise_multiplier=30.0),
        privacy(neighbours="replacement"),
        privacy(sampling_rate=0.5, batch=250),
    ],
    ids=["as it is", "rounds", "ε", "batch", "clip", "small ε", "holders", "momentum", "σ", "replaced", "drawn"],
)
def test_the_noise_of_all_rounds_moves_a_weight_as_far_as_it_is_to(changes: Settings) -> None:
    job = auto(ROUNDS_OF_ALL, changes)
    assert job.train.learning_rate < LARGEST_RATE
    assert wander(job, len(job.data.names)) == pytest.approx(WANDER, rel=0.03)


@nightly
def test_a_small_rate_that_edges_ask_for_and_the_largest_that_there_is() -> None:
    edged = auto(privacy(degree_bound=3, batch=5000))
    assert edged.model.local.hops == 1
    assert 0 < edged.train.learning_rate < auto(ROUNDS_OF_ALL, privacy(batch=5000)).train.learning_rate
    assert 0.3 * WANDER < wander(edged) < 1.5 * WANDER
    assert auto(ROUNDS_OF_ALL, privacy(epsilon_total=16.0, batch=1e5)).train.learning_rate == LARGEST_RATE


WRONG: dict[str, tuple[Settings, str]] = {
    "no split": ({"data": {"split": None}}, "data.split"),
    "judged": ({"train": {"select_by": "accuracy"}}, "train.select_by"),
    "no batch": (merge(ROUNDS_OF_ALL, privacy(batch=None)), "averaging.privacy.batch"),
    "a batch for nothing": (privacy(delta=1e-5), "averaging.privacy.batch"),
    "no ε": (privacy(epsilon_total=None), "epsilon_total"),
    "rounds": ({"train": {"epochs": "many"}}, "train.epochs"),
    "momentum": ({"averaging": {"rule": {"name": "fedsgd", "momentum": 1.0}}}, "averaging.rule.fedsgd.momentum"),
    "unknown": (privacy(rate=3), "averaging.privacy.rate"),
    "at home": ({"averaging": {"at_home": {"epoch": 3}}}, "averaging.at_home.epoch"),
}


@pytest.mark.parametrize(("changes", "key"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_with_a_job_is_said_and_not_what_would_have_been_chosen(changes: Settings, key: str) -> None:
    said: dict[str, Any] = merge(GIVEN, changes)
    with refused(ConfigError, key=key):
        parse_with_choices(said)


def test_of_two_errors_the_one_that_choices_leave_is_said() -> None:
    """By itself the job breaks other rules too, which the preset would have kept."""
    wrong: Settings = merge(GIVEN, {"model": {"local": {"model": "gcn", "hops": 0}}})
    with refused(ConfigError, key="averaging.rule.name"):
        parse_with_choices({**wrong, "preset": "paper", "data": {**wrong["data"], "stratify": False}})
    with refused(ConfigError, key="model.local.model"):
        parse_with_choices(wrong)
