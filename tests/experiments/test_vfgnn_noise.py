"""The paper's noise in the plaintext twin: its mechanisms, and that without noise it is the twin."""

import pytest
import torch

from research import vfgnn_noise
from research.vfgnn_noise import CLIP, DELTA, NoisyNetwork, james_stein, released, sigma
from tests.roles.federation import small_job, small_parties
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.privacy.accountant import gaussian_epsilon


@pytest.fixture
def rows() -> torch.Tensor:
    return 3 * torch.randn(4000, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_rows_are_clipped_and_have_the_papers_noise(rows: torch.Tensor) -> None:
    x = rows.requires_grad_()
    found = released(x, "Gaussian", 0.5, 8.0)
    clipped = x * (0.5 / x.norm(dim=1, keepdim=True)).clamp_max(1)
    assert float((found - clipped).detach().std()) == pytest.approx(0.5 * sigma(8.0), rel=0.02)
    (gradient,) = torch.autograd.grad(found.square().sum(), x, retain_graph=True)
    assert gradient.abs().max() > 0
    assert gaussian_epsilon(1 / sigma(4.0), DELTA) == pytest.approx(3.451, rel=1e-3), "truly less than it says"
    assert gaussian_epsilon(1 / sigma(64.0), DELTA) == pytest.approx(162.5, rel=1e-3), "and more"


def test_james_stein_has_the_error_of_theorem_2_mended() -> None:
    draws, width, spread, noise = 200_000, 8, 1.5, 1.0
    generator = torch.Generator().manual_seed(2)
    x = spread * torch.randn(draws, width, dtype=torch.float64, generator=generator)
    noisy = x + noise * torch.randn(draws, width, dtype=torch.float64, generator=generator)
    expected = width * noise**2 * (1 - (width - 2) / width * noise**2 / (spread**2 + noise**2))
    assert float((james_stein(noisy, noise) - x).square().sum(1).mean()) == pytest.approx(expected, rel=0.02)
    assert float((noisy - x).square().sum(1).mean()) == pytest.approx(width * noise**2, rel=0.02)


@pytest.mark.parametrize("mechanism", ["Gaussian", "James-Stein"])
def test_with_next_to_no_noise_it_trains_as_the_twin(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vfgnn_noise, "GRADIENT_CLIP", 10.0)
    local = {"model": "sage-mean", "normalize": True}
    settings, graphs = small_job(2, {"model": {"local": local, "server": {"layers": 0}}}), small_parties(2)
    plain, noisy = PlainNetwork(settings, graphs, "A"), NoisyNetwork(settings, graphs, "A", mechanism, 1e7)
    assert CLIP >= 1, "of rows of length 1"
    losses = [[network.train_step(epoch) for epoch in range(1, 4)] for network in (plain, noisy)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert losses[0][0] != losses[0][2]
    other = NoisyNetwork(settings, graphs, "A", mechanism, 1.0)
    assert [other.train_step(epoch) for epoch in range(1, 4)] != pytest.approx(losses[0], abs=1e-2)
