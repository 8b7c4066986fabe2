"""VFGNN Table 5: Cora with noise on what every step publishes, Gaussian and James-Stein, as the paper has it.

``python -m research.vfgnn_noise --seeds 10`` measures what ``docs/figures/vfgnn-noise.json`` lacks, and ``--write``
puts the table into docs/reference/results.md. Jobs have no such noise: it gained nothing at an ε that protects
anything. Here the plaintext twin of a job has it, in the clear: rows of length C at most, N(0, σ²C²) on every entry of
embeddings and of the label holder's gradient, and after that the estimate of James and Stein (VFGNN, Algorithm 1).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from docs.pages import figure_path, find_page
from research.figures import Figures, shown
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.samples.shipped import shipped_job, with_overrides

FIGURES: Final = figure_path("vfgnn-noise.json")
PAGE: Final = find_page("results.md")
BEGIN: Final = "## VFGNN Table 5: Cora with differential privacy in every step\n"
END: Final = "\n- One setting"
EPSILONS: Final = (4, 8, 16, 32, 64)
SHOWN: Final = (4, 16, 64)
"""Columns of the page."""
DELTA: Final = 1e-4
CLIP, GRADIENT_CLIP = 1.0, 3e-4
PAPER: Final = {
    "Gaussian": (0.502, 0.702, 0.772, 0.789, 0.794),
    "James-Stein": (0.510, 0.706, 0.781, 0.799, 0.804),
}
_JOB: Final[dict[str, Any]] = {
    "preset": "paper",
    "model.dim": 32,
    "model.initial": {"method": "collaborative", "learning_rate": 100.0, "momentum": 0.9},
    "model.local": {
        "model": "sage-mean", "hops": 6, "activation": "tanh", "start": "average", "normalize": True,
        "learning_rate": 3e-4,
    },
    "model.server": {"layers": 0, "dropout": 0.0},
    "model.head": {"logit_hops": 8, "logit_teleport": 0.1},
    "train": {
        "epochs": 120, "select_by": "last", "patience": None, "learning_rate": 3e-3, "weight_decay": 5e-4,
    },
}  # fmt: skip
"""What the shipped job of Cora has otherwise, chosen on validation nodes."""
_RELEASES: Final = 362
"""Of the label holder: embeddings of both holders, as h^0 is joint, and its gradient, of 120 steps, and two more."""


def sigma(epsilon: float) -> float:
    """σ of the textbook's formula, which is proven below ε = 1 alone (Dwork & Roth 2014, theorem A.1)."""
    return math.sqrt(2 * math.log(1.25 / DELTA)) / epsilon


@torch.no_grad()
def james_stein(noisy: Tensor, deviation: float) -> Tensor:
    """Rows, Tensor[N, d], shrunk towards zero: (1 − (d−2)s²/‖x̃‖²)·x̃ (VFGNN, Theorem 2, s = σC).

    The paper's eq. 8 drops C² in its leading factor and prints as equal what is an upper bound. For x ~ N(0, w²I),
    E[1/‖x̃‖²] = 1/((d−2)(w² + s²)), and so E‖x̃_JS − x‖² = d·s²·(1 − (d−2)/d · s²/(w² + s²)).
    """
    lengths = torch.linalg.vector_norm(noisy, dim=1, keepdim=True) / deviation
    shrunk: Tensor = noisy * (1 - (noisy.shape[1] - 2) / lengths.clamp_min(1e-7).square())
    return shrunk


def released(rows: Tensor, mechanism: str, clip: float, epsilon: float) -> Tensor:
    """Rows, Tensor[N, d], clipped and noised; the gradient is that of the clipped rows."""
    noise = Gaussian(clip, sigma(epsilon))
    found = noise.release(rows.detach(), system_secrets)
    if mechanism == "James-Stein":
        found = james_stein(found, noise.scale)
    clipped = rows * (clip / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(clip))
    noised: Tensor = found.to(rows.dtype) + (clipped - clipped.detach())
    return noised


class _Released(nn.Module):
    """What a holder gives to COMBINE, of noisy rows."""

    def __init__(self, contribution: nn.Module, mechanism: str, epsilon: float) -> None:
        super().__init__()
        self.contribution, self._mechanism, self._epsilon = contribution, mechanism, epsilon

    @override
    def forward(self, rows: Tensor) -> Tensor:
        given: Tensor = self.contribution(released(rows, self._mechanism, CLIP, self._epsilon))
        return given


class NoisyNetwork(PlainNetwork):
    """All parts of a job's network, whose holders publish with noise."""

    def __init__(
        self, settings: JobSettings, graphs: Sequence[PartyGraph], label_party: PartyId, mechanism: str, epsilon: float
    ) -> None:
        super().__init__(settings, graphs, label_party)
        self._mechanism, self._epsilon = mechanism, epsilon
        for network in self.holders.values():
            network.contribution = _Released(network.contribution, mechanism, epsilon)

    @override
    def _cut(self, received: Tensor, party: PartyId, *, deep: bool = False) -> Tensor:
        if not deep or not received.requires_grad:
            return received
        branch = received.view_as(received)
        noised = partial(released, mechanism=self._mechanism, clip=GRADIENT_CLIP, epsilon=self._epsilon)
        branch.register_hook(lambda gradient: noised(gradient).detach())  # type: ignore[no-untyped-call]
        return branch


def accuracy(mechanism: str, epsilon: float, seed: int) -> float:
    """On test nodes, after the last epoch."""
    job = with_overrides(shipped_job("cora"), {**_JOB, "seed": seed})
    graphs = paradigm_of(job).data.load(job).graphs
    return float(fit(NoisyNetwork(job, graphs, job.data.label_party, mechanism, epsilon)).summary["test_accuracy"])


def measured(seeds: int) -> None:
    """What is not there yet, kept after every figure."""
    figures = Figures(FIGURES)
    for seed in range(seeds):
        for mechanism in PAPER:
            for epsilon in EPSILONS:
                key = f"cora/row/{mechanism}/{epsilon:g}/{seed}"
                figures.measure(key, partial(accuracy, mechanism, epsilon, seed))


def table() -> list[str]:
    """Markdown."""
    figures = Figures(FIGURES)
    heads = [word for epsilon in SHOWN for word in (f"per-step ε {epsilon}", "paper")]
    lines = [f"| mechanism | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for mechanism, paper in PAPER.items():
        cells = [
            word
            for epsilon, printed in zip(EPSILONS, paper, strict=True)
            if epsilon in SHOWN
            for word in (shown(figures.of("cora", "row", mechanism, epsilon)), f"{printed:.3f}")
        ]
        lines.append(f"| {mechanism} | {' | '.join(cells)} |")
    costs = {"of one release": 1, f"of the label holder's {_RELEASES} releases": _RELEASES}
    for what, releases in costs.items():
        true = [gaussian_epsilon(math.sqrt(releases) / sigma(epsilon), DELTA) for epsilon in SHOWN]
        lines.append(f"| true ε {what} | {' | '.join(f'{each:,.4g} | ' for each in true)} |")
    count = len(figures.of("cora", "row", "Gaussian", EPSILONS[0]))
    return [
        *lines,
        "",
        f"- Twin after the last epoch, {count} seeds: `python -m research.vfgnn_noise --seeds {count}` and `--write`.",
        "- The columns' ε is the paper's: of a single release, by a formula that holds below 1 only. True ε are of one "
        f"row, zero-out, at δ = {DELTA:g}.",
    ]


def main() -> None:
    """Measures, or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help="measure nothing, and put the table into the page")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.write:
        measured(arguments.seeds)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(table()) + "\n" + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
