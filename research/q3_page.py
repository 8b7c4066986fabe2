"""The page of VFGNN's Q3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from research.markdown import mean_and_spread
from research.secure_gnn_files import SIGMOID, TANH
from veilgraph import __version__

VFGNN: Final = "VFGNN"
SECURE: Final = "SecureGNN"
SECURE_PUBLIC: Final = "SecureGNN, public edges"

_PAPER: Final = {("pubmed", VFGNN): (0.809, 18.65), ("pubmed", SECURE): (0.797, 166.81)}
"""(data set, model) → test accuracy, seconds an epoch; all that section 4.2 reports."""


@dataclass(frozen=True)
class Row:
    """A model on a data set.

    Attributes:
        dataset: by the name the settings use.
        model: ``VFGNN``, ``SECURE`` or ``SECURE_PUBLIC``.
        accuracies: on the test nodes, in [0, 1], one for each seed.
        epoch: ``seconds`` and ``sent_bytes`` of one; of SecureGNN also ``epochs``, ``cpu_seconds``, ``difference``,
            ``moved``, ``setup_seconds``, ``peak_bytes``; or ``left_out``, why it was not run under SPU.
    """

    dataset: str
    model: str
    accuracies: Sequence[float]
    epoch: Mapping[str, Any]


def page(rows: Sequence[Row], seeds: int, command: str) -> str:
    """Markdown: the table, and how its figures were made.

    Args:
        rows: in the table's order.
        seeds: trainings of each accuracy.
        command: that makes the page.
    """
    lines = [
        "# VFGNN Q3: the whole GNN inside MPC",
        "",
        "| data set | model | test accuracy | paper | seconds an epoch | paper | times VFGNN | MB an epoch |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
        *(_line(row, rows) for row in rows),
        "",
        f"- {'One seed' if seeds == 1 else f'Mean ± sample standard deviation over {seeds} seeds'} of partition and "
        "weights; test accuracy at the epoch chosen on validation nodes. Two holders, edges and columns dealt evenly.",
        f"- {VFGNN}: the shipped job, all protocols in place. Times are of a training step with every party a process, "
        "taken with seed 0 before and after those of SecureGNN, in the same run; MB: of the party that sends most.",
        *(_about_secure() if any(row.model != VFGNN for row in rows) else []),
        *_checks(rows),
        *(
            f"- {row.model} on {row.dataset} was not run under SPU: {row.epoch['left_out']}."
            for row in rows
            if "left_out" in row.epoch
        ),
        "- The paper has figures for PubMed alone, and its accuracy of VFGNN there is Cora's in its Table 2.",
        f"- veilgraph {__version__}, torch {torch.__version__}, SPU 0.9.5; made with `{command}`.",
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, rows: Sequence[Row]) -> str:
    accuracy, seconds = _PAPER.get((row.dataset, row.model), (None, None))
    reference = next((each.epoch for each in rows if (each.dataset, each.model) == (row.dataset, VFGNN)), None)
    if "left_out" in row.epoch:
        taken, times, sent = "–", "–", "–"
    else:
        taken = f"{row.epoch['seconds']:.3g}"
        times = "–" if reference is None else f"{row.epoch['seconds'] / reference['seconds']:.3g}"
        sent = f"{row.epoch['sent_bytes'] / 1e6:,.1f}"
    words = (
        row.dataset,
        row.model,
        mean_and_spread(row.accuracies),
        "–" if accuracy is None else f"{accuracy:.3f}",
        taken,
        "–" if seconds is None else f"{seconds:g}",
        times,
        sent,
    )
    return f"| {' | '.join(words)} |"


def _about_secure() -> list[str]:
    return [
        "- SecureGNN is VFGNN's network as one, all of it on secret shares: X·W of all columns, the job's hops of "
        "GraphSAGE with the mean over the united edges, rows to length 1, the server's layer and the output layer. "
        f"Its tanh is a cubic fitted on ±{TANH.radius:g} (error up to {TANH.error:.2g}), the sigmoid one on "
        f"±{SIGMOID.radius:g} ({SIGMOID.error:.2g}); softmax and the rows' length are SPU's approximations. SGD with "
        "momentum on cross entropy, no dropout. Which nodes are for training is known to both.",
        "- SPU's SEMI2K, a ring of 64 bits with 18 after the point, a process for each holder, brpc over localhost. "
        "Its correlated randomness comes from the first holder, which could unmask everything; a deployment needs a "
        "third party or a dearer protocol for it, so these times are on the low side.",
        "- **Accuracy of SecureGNN is that of its plaintext twin**: the same JAX program in float32 on pooled data, "
        "trained to the end, which under SPU takes hours. With public edges it is the same training.",
    ]


def _checks(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if "difference" in row.epoch]
    return [_check(f"{row.model} on {row.dataset}", row.epoch) for row in measured]


def _check(what: str, epoch: Mapping[str, Any]) -> str:
    return (
        f"- {what}: median of {epoch['epochs']} epochs under SPU, {epoch['cpu_seconds']:.3g} CPU seconds each, after "
        f"which every weight was within {epoch['difference']:.1g} of the twin's and the farthest had moved "
        f"{epoch['moved']:.2g}. Sharing and compiling before took {epoch['setup_seconds']:.0f} s, a holder up to "
        f"{epoch['peak_bytes'] / 1e9:.1f} GB of memory."
    )
