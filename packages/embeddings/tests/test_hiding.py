"""Attacks succeed on plain embeddings and find less in those that were trained to hide; what is useful is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from veilgraph_embeddings.assess import assess, row_means, standardised
from veilgraph_embeddings.attackers import FAMILIES, GRAPH_FAMILIES, View
from veilgraph_embeddings.autoencoder import Training, Weights, train
from veilgraph_embeddings.making import Made, given, held_out, make
from veilgraph_embeddings.measure import told
from veilgraph_embeddings.world import World

from packages.embeddings.tests.worlds import crossed, job, world
from tests import nightly
from veilgraph.core.randomness import LearningStreams
from veilgraph.protocol.view import Floats


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    asked = job(evaluation={"families": ["logistic", "neighbours"]})
    return make(asked, world(), tmp_path_factory.mktemp("made"), lambda *_: None)


def test_the_attack_succeeds_on_plain_embeddings_and_less_on_hidden_ones(made: Made) -> None:
    before, after = made.before.attack.advantage, made.after.attack.advantage
    assert before.value > 0.8
    assert after.value < before.value / 2
    assert after.high < before.low


def test_what_is_useful_is_kept(made: Made) -> None:
    assert made.before.useful.accuracy.value > 0.9
    assert made.after.useful.accuracy.value > made.before.useful.accuracy.value - 0.1
    assert made.before.links is not None
    assert made.before.links.value > 0.6


def codes(weights: Weights, of: World, epochs: int = 40, steps: int = 2, dim: int = 8) -> torch.Tensor:
    training = Training(dim, 16, epochs, steps, 0.02, weights)
    return train(of, training, LearningStreams(0, "embed"), lambda *_: None)[1]


def apart(of: World, rows: torch.Tensor) -> float:
    """How far the mean code of one private value is from that of the other, in standard deviations."""
    seen, odd = standardised(rows), of.hide.codes.numpy() == 1
    return float(np.linalg.norm(seen[odd].mean(axis=0) - seen[~odd].mean(axis=0)))


@nightly
def test_each_part_of_the_loss_hides() -> None:
    of = world()
    plain = apart(of, codes(Weights(1, 1, 1), of))
    assert plain > 1
    assert apart(of, codes(Weights(1, 1, 1, hide=1), of, 60, 5)) < 0.75 * plain
    assert apart(of, codes(Weights(1, 1, 1, match=3), of)) < 0.5 * plain


def test_the_discriminator_holds_codes_to_a_normal_prior() -> None:
    of = world()
    spreads = [codes(Weights(1, 1, 1, prior=each), of).std(dim=0) for each in (0.0, 1.0)]
    assert float((spreads[1] - 1).abs().mean()) < 0.5 * float((spreads[0] - 1).abs().mean())


def test_the_decoder_uses_what_it_is_given_in_place_of_the_code() -> None:
    """Disentangling alone: codes of two numbers need not carry the private value where the decoder has it."""
    of = world()
    rows = [codes(Weights(0, 1, 0, conditioned=each), of, 60, dim=2) for each in (False, True)]
    assert apart(of, rows[1]) < 0.8 * apart(of, rows[0])


def test_plain_embeddings_do_not_read_the_private_attribute() -> None:
    of = world()
    other = world(hide=of.hide.without(torch.ones(of.num_nodes, dtype=torch.bool)))
    assert torch.equal(codes(Weights(1, 1, 1), of, 3), codes(Weights(1, 1, 1), other, 3))


def test_the_same_seed_gives_the_same_codes() -> None:
    of = world(crossed(60))
    weights = Weights(1, 1, 1, hide=1, match=1, prior=1, conditioned=True)
    assert torch.equal(codes(weights, of, 3), codes(weights, of, 3))


def view(rows: Floats, values: np.ndarray, near: sp.csr_array | None = None) -> View:
    return View(rows, values.astype(np.int64), 2, known(len(values)), near, 0)


def known(nodes: int) -> np.ndarray:
    return np.random.default_rng(9).random(nodes) < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_finds_what_is_there_and_nothing_else(family: str) -> None:
    random = np.random.default_rng(0)
    values = random.integers(2, size=160)
    rows = random.normal(size=(160, 3))
    targets = ~known(160)
    for signal, least, most in ((4.0, 0.8, 1.01), (0.0, -0.3, 0.3)):
        seen = view(rows + signal * values[:, None] * [1, 0, 0], values)
        found = FAMILIES[family](seen, targets)
        assert found.sum(axis=1) == pytest.approx(1)
        wrong = (found.argmax(axis=1) != values[targets]).mean()
        assert least <= 1 - 2 * wrong <= most


def test_public_edges_tell_what_no_embedding_does() -> None:
    data = crossed(200)
    values, near = data.private.numpy(), row_means(torch.stack([*data.edge_index]), 200)
    seen = view(np.random.default_rng(0).normal(size=(200, 4)), values, near)
    targets = ~known(200)
    for attack in GRAPH_FAMILIES.values():
        assert (attack(seen, targets).argmax(axis=1) == values[targets]).mean() > 0.8
    blind = View(seen.rows, np.where(seen.known, values, 1 - values), 2, seen.known, near, 0)
    for attack in GRAPH_FAMILIES.values():  # unknown values are not read
        assert np.array_equal(attack(blind, targets), attack(seen, targets))


def test_an_advantage_is_zero_for_a_guess_one_for_always_right_and_turned_round_below() -> None:
    truth = np.array([0] * 90 + [1] * 30)
    shares = np.array([0.75, 0.25])
    usual = told("usual", np.tile(shares, (120, 1)), truth, shares, seed=0)
    assert (usual.advantage.value, usual.accuracy.value, usual.prior) == (0.0, 0.75, 0.75)
    right = told("right", np.eye(2)[truth], truth, shares, seed=0)
    assert (right.advantage.value, right.advantage.low) == (1.0, 1.0)
    wrong = told("wrong", np.eye(2)[1 - truth], truth, shares, seed=0)
    assert (wrong.advantage.value, wrong.accuracy.value) == (1.0, 0.0)
    three = np.arange(90) % 3
    none = told("none", np.eye(3)[(three + 1) % 3], three, np.full(3, 1 / 3), seed=0)
    assert none.advantage.value == pytest.approx(0.25)


def test_the_interval_is_that_of_resampled_targets() -> None:
    random = np.random.default_rng(0)
    truth = np.array([0] * 100 + [1] * 50)
    answer = np.where(random.random(150) < 0.7, truth, 1 - truth)
    found = told("some", np.eye(2)[answer], truth, np.array([0.5, 0.5]), seed=0).advantage
    drawn = []
    for _ in range(1000):
        zero, one = random.integers(100, size=100), 100 + random.integers(50, size=50)
        drawn.append((answer[zero] == 0).mean() + (answer[one] == 1).mean() - 1)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.03)


def test_a_ledger_is_kept_by_the_noised_method_alone(tmp_path: Path) -> None:
    make(job(), world(crossed(60)), tmp_path, lambda *_: None)
    assert not any(tmp_path.iterdir())


def test_nothing_that_figures_are_held_against_reaches_the_encoder_or_an_attacker() -> None:
    of, asked = world(), job(evaluation={"families": ["neighbours", "boosting"]})
    held = held_out(asked, of)
    told_of = given(of, held)
    assert not told_of.keep.known[torch.from_numpy(held.unseen)].any()
    assert torch.equal(told_of.keep.known, ~torch.from_numpy(held.unseen))
    assert held.pairs.shape[1] > 0
    assert {*map(tuple, told_of.pairs.T.tolist())} | {*map(tuple, held.pairs.T.tolist())} == {
        *map(tuple, of.pairs.T.tolist())
    }
    assert told_of.pairs.shape[1] + held.pairs.shape[1] == of.pairs.shape[1]
    chance = replace(of.hide, codes=torch.randint(2, (160,), generator=torch.Generator().manual_seed(0)))
    rows = torch.randn(160, 2, generator=torch.Generator().manual_seed(1))
    for found in assess(rows, replace(of, hide=chance, keep=chance), held, seed=0).hide:
        assert found.advantage.value < 0.5  # nearest neighbours would know the nodes that they had seen
