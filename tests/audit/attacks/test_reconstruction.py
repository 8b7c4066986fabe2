"""Reconstruction from opened h^0: exact where the sequence decides it, chance where it says nothing."""

import numpy as np
import pytest
import torch
from torch import Tensor

from veilgraph.audit.pairs import alike_pairs, pair_products
from veilgraph.audit.reconstruction import complete_columns, gram_estimate, projected_gram, sequence_basis
from veilgraph.audit.statistics import measure
from veilgraph.core.randomness import LearningStreams
from veilgraph.paradigms.vertical.network import InitialSettings, init_std
from veilgraph.paradigms.vertical.twin import PlainEmbedding

NODES, OWN, PRIVATE, WIDTH = 90, 6, 14, 4
RATE, MOMENTUM, DECAY = 0.05, 0.9, 0.4


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def known() -> np.ndarray:
    return np.arange(NODES) < 40


class Opened:
    """What PlainEmbedding opens over some steps with random gradients, and B_t of each holder."""

    def __init__(self, steps: int) -> None:
        random = torch.Generator().manual_seed(2)
        x = {
            "A": torch.randn(NODES, OWN, generator=random).double(),
            "B": (torch.rand(NODES, PRIVATE, generator=random) < 0.3).double(),
        }
        settings = InitialSettings(learning_rate=RATE, momentum=MOMENTUM, weight_decay=DECAY)
        streams = {name: LearningStreams(1, name) for name in x}
        twin = PlainEmbedding(settings, x, streams, WIDTH, torch.float64, feature_bits=40)
        self.own, self.private = x["A"].numpy(), x["B"].numpy()
        self.weight_std = init_std(settings, OWN + PRIVATE, WIDTH)
        momentum, scale = {name: torch.zeros(NODES, WIDTH).double() for name in x}, 1.0
        h0 = [twin.embed()["A"]]
        raw, updates = [h0[0]], {name: list[Tensor]() for name in x}
        for _ in range(steps):
            gradients = {name: torch.randn(NODES, WIDTH, generator=random).double() for name in x}
            twin.learn(gradients)
            scale *= 1 - RATE * DECAY
            for name, gradient in gradients.items():
                momentum[name] = MOMENTUM * momentum[name] + gradient
                updates[name].append(momentum[name] * RATE / scale)
            h0.append(twin.embed()["A"])
            raw.append(h0[-1] / scale)
        self.h0, self.raw = torch.stack(h0).numpy(), torch.stack(raw).numpy()
        self.updates = {name: torch.stack(each).numpy() for name, each in updates.items()}


class TestSpan:
    def test_steps_enough_for_the_rank_complete_a_private_column_exactly(self, known):
        opened = Opened(steps=3)  # 4·4 columns of h0 and 6 own ones for a rank of 20
        for power in (0.0, 0.5, 1.0):
            basis = sequence_basis(opened.h0, opened.own, power=power)
            assert basis.shape == (NODES, OWN + PRIVATE)
            assert complete_columns(basis, opened.private, known) == pytest.approx(opened.private, abs=1e-4)

    def test_fewer_steps_or_no_view_leave_it_open(self, known):
        opened = Opened(steps=1)
        basis = sequence_basis(opened.h0, opened.own)
        assert basis.shape == (NODES, OWN + 2 * WIDTH)
        errors = [
            np.abs(complete_columns(rows, opened.private, known) - opened.private)[~known].mean()
            for rows in (basis, opened.own)
        ]
        assert 0.1 < errors[0] < errors[1]

    def test_an_unrelated_sequence_says_nothing(self, random):
        basis = sequence_basis(random.normal(size=(3, 2000, 8)))
        truth, known = random.random((2000, 4)) < 0.5, np.arange(2000) < 1000
        scores = complete_columns(basis, truth.astype(np.float64), known)
        assert measure(scores[~known].ravel(), truth[~known].ravel()).auc == pytest.approx(0.5, abs=0.03)


class TestInnerProducts:
    def test_who_knows_all_updates_has_them_exactly_with_steps_enough(self):
        opened = Opened(steps=40)
        updates = opened.updates["A"] + opened.updates["B"]
        found = gram_estimate(opened.raw, updates, ridge=1e-12)
        assert found == pytest.approx(opened.own @ opened.own.T + opened.private @ opened.private.T, abs=1e-5)

    def test_pairs_are_told_apart_by_an_opened_h0_and_not_by_another(self, random):
        private, own = random.normal(size=(300, 10)), random.normal(size=(300, 10))
        attacked = alike_pairs(private, 4000, share=0.05, seed=0)
        assert attacked.truth.mean() == pytest.approx(0.05, abs=0.001)
        slow = np.array([private[first] @ private[second] for first, second in attacked.pairs])
        assert slow[attacked.truth].min() > slow[~attacked.truth].max()
        exact = own @ own.T + private @ private.T
        first, second = attacked.pairs.T
        without_own = pair_products(own, attacked.pairs)
        assert exact[first, second] - without_own == pytest.approx(slow)

        opened = projected_gram(np.hstack([own, private]) @ random.normal(size=(20, 40)), 1.0)
        unrelated = projected_gram(random.normal(size=(300, 40)), 1.0)
        assert measure(opened[first, second] - without_own, attacked.truth).auc > 0.85
        assert measure(unrelated[first, second], attacked.truth).auc == pytest.approx(0.5, abs=0.1)
