"""Cora's whole sealed job beside general secure computation, in one run: ``python -m benchmarks.sealed_peers``.

SecureGNN and the sealed job's own network under SPU, which ``make spu`` installs; everything on this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from benchmarks.perceptron_check import Figures, Values, save
from benchmarks.sealed import ran
from benchmarks.wires import installed
from research.q3 import secure_settings
from research.secure_gnn import secure_epochs
from research.secure_gnn_spu import spu_python
from veilgraph.graph.dataset import load_parties
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.plan import hops_of
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.samples.shipped import shipped_job, with_overrides

_EPOCHS, _TIMEOUT_S, _STEPS = 2, 3600, 5
_ONE_NETWORK = {
    "model.network": "mlp",
    "model.blocks": ["pooled.6"],
    "train.epochs": 50,
    "train.learning_rate": 2.0,
    "train.weight_decay": 1e-2,
    "train.select_by": "last",
    "train.checkpoint_every": 1000,
}
"""One trial, so that SPU computes the same."""


@dataclass(frozen=True)
class PeerRuns:
    """Seconds, and bytes of the holder that sends most.

    Attributes:
        whole_s, whole_bytes: our whole job; the dealer's are not counted, nor are theirs.
        steps: that it has.
        epoch_s, epoch_bytes: one of SecureGNN's under SPU.
        spu: the job's own network under SPU.
        nobody_s, nobody_bytes: the same job, to whom nobody deals.
    """

    whole_s: float
    whole_bytes: int
    steps: int
    epoch_s: float
    epoch_bytes: int
    spu: Figures
    nobody_s: float
    nobody_bytes: int


def measure(python: Path) -> PeerRuns:
    """Ours, SecureGNN, the same network, and ours again, also by nobody."""
    job = sealed(with_overrides(shipped_job("cora-sealed"), _ONE_NETWORK | {"timeout_s": 900}))
    graphs = load_parties(job.data, job.seed)
    vertical = with_overrides(shipped_job("cora"), {"seed": job.seed})
    with installed(job.data.names):
        first = ran(job)
        secure = secure_epochs(
            secure_settings(vertical),
            load_parties(vertical.data, job.seed),
            job.data.label_party,
            job.seed,
            python,
            _TIMEOUT_S,
            epochs=_EPOCHS,
            public_adjacency=False,
        )
        with TemporaryDirectory() as folder:
            path = Path(folder) / "values.npz"
            save(path, *_values(job, graphs))
            command = [str(python), "-m", "benchmarks.spu.perceptron", str(path), "--steps", str(_STEPS)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        second, undealt = ran(job), ran(sealed(with_overrides(job, {"trust": "nobody"})))
    sent = first.summary["sent_bytes"]
    return PeerRuns(
        (first.whole_s + second.whole_s) / 2,
        max(sent[holder] for holder in job.data.names),
        job.train.epochs,
        median(secure.seconds),
        secure.sent_bytes,
        Figures(**json.loads(output)),
        undealt.whole_s,
        max(undealt.summary["sent_bytes"][holder] for holder in job.data.names),
    )


def _values(job: SealedJob, graphs: Sequence[PartyGraph]) -> tuple[Values, dict[str, np.ndarray]]:
    """What the two holders have, and how the job trains."""
    context, data = twin_context(job, graphs)
    plan, sizes = context.plan, context.sizes
    weights = [
        weight.public.numpy()
        for weight in SealedProgram(PlainMachine(list(data)), context).weights
        if weight.public is not None
    ]
    own = data[context.label_party]
    assert own.rows is not None
    assert own.labels is not None
    values = {
        "rows": np.eye(sizes.nodes)[own.rows.numpy()],
        "y": np.eye(sizes.classes)[own.labels.numpy()],
        **{f"w{place}": weight for place, weight in enumerate(weights, 1)},
        **{f"v{place}": np.zeros_like(weight) for place, weight in enumerate(weights, 1)},
    }
    for place, part in enumerate(data.values()):
        values |= {f"x{place}": part.columns["own"].numpy(), f"a{place}": _dense(part.edges, sizes.nodes)}
    (trial,), decay = plan.trials, plan.weight_decay
    assert decay is not None
    hops = hops_of(trial.blocks[0])
    return Values(hops, plan.teleport(hops), trial.learning_rate, plan.momentum, decay), values


def _dense(edges: Tensor, nodes: int) -> np.ndarray:
    found = np.zeros((nodes, nodes), np.float32)
    np.add.at(found, (edges[1].numpy(), edges[0].numpy()), 1)
    return found


def section(found: PeerRuns) -> list[str]:
    """The table, in Markdown."""
    whole, spu = found.whole_s, found.spu
    theirs, megabytes = spu.whole_s(found.steps), 1e-6
    return [
        "## Beside general secure computation",
        "",
        "Cora, two holders, one run of everything. SPU (SEMI2K, correlated randomness from "
        "the first holder) has no hidden sparse matrices: a hop is a product with all N² places.",
        f"`The same network` is ours, with softmax and argmax as SPU has them. Its weights after {1 + _STEPS} steps "
        f"are within {spu.error:.3f} of those in plaintext. Its {found.steps} steps are counted from the median of "
        f"{_STEPS}.",
        "",
        "| | set-up | step | prediction | whole, or an epoch | to ours | MB, of the holder that sends most |",
        "|---|---|---|---|---|---|---|",
        f"| sealed, {found.steps} steps | | | | {whole:.1f} s | 1 | {found.whole_bytes * megabytes:.0f} |",
        f"| the same, dealt by nobody | | | | {found.nobody_s:.1f} s | {found.nobody_s / whole:.1f} | "
        f"{found.nobody_bytes * megabytes:.0f} |",
        f"| the same network under SPU, {found.steps} steps | {spu.set_up_s:.1f} s | {1000 * spu.step_s:.0f} ms | "
        f"{spu.predict_s:.1f} s | {theirs:.0f} s | {theirs / whole:.1f} | "
        f"{spu.whole_bytes(found.steps) * megabytes:,.0f} |",
        f"| SecureGNN under SPU, one epoch | | | | {found.epoch_s:.1f} s | {found.epoch_s / whole:.1f} | "
        f"{found.epoch_bytes * megabytes:.0f} |",
        "",
    ]


def main() -> None:
    """Measures and prints; with ``--out`` also writes JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sealed_peers", description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    found = measure(spu_python())
    if asked.out is not None:
        asked.out.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")
    print("\n".join(section(found)))


if __name__ == "__main__":
    main()
