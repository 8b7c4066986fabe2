"""SecureGNN, the naive solution that VFGNN is compared with (4.2, Q3): the whole network inside secure computation.

Holders secret-share features, edges and labels, and SPU (SEMI2K, ring of 64 bits) trains the network of VFGNN's
holders, server and label holder on the shares, tanh and sigmoid as cubic polynomials. Network and protocol:
``spu/network.py`` and ``spu/program.py``, run by SPU's own Python with files of arrays in between.

A full training takes hours under SPU. So accuracy is that of the plaintext twin, the same JAX functions on pooled
data, and the few epochs that SPU is timed on are compared with the twin's in every weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from torch import Tensor

from research.secure_gnn_files import Array, SecureGNN, read_arrays, training_first, write_inputs
from research.secure_gnn_spu import PROGRAMS, run_together
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.types import PartyId
from veilgraph.graph.federation import find_label_holder
from veilgraph.graph.party import PartyGraph

TOLERANCE: Final = 1e-3
"""How far a weight may be from the twin's after the timed epochs."""
_PROGRAM: Final = PROGRAMS / "program.py"


@dataclass(frozen=True)
class TwinScores:
    """The plaintext twin's accuracy, in [0, 1], at the epoch with the best accuracy on the validation nodes."""

    val_accuracy: float
    test_accuracy: float
    best_epoch: int


@dataclass(frozen=True)
class SecureEpochs:
    """Epochs under SPU.

    Attributes:
        seconds: of each epoch, at the slower holder.
        cpu_seconds: of each epoch, of all holders together; other work on the machine changes it little.
        sent_bytes: in one epoch, by the holder that sends most.
        setup_seconds: sharing all inputs, and what is computed once.
        peak_bytes: memory of the holder that needs most.
        difference: the largest difference of a weight from the twin's after these epochs.
        moved: the farthest that a weight of the twin moved in them.
    """

    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    sent_bytes: int
    setup_seconds: float
    peak_bytes: int
    difference: float
    moved: float


def twin_scores(
    settings: SecureGNN, graphs: Sequence[PartyGraph], label_party: PartyId, seed: int, python: Path, timeout_s: float
) -> TwinScores:
    """Trains the plaintext twin in SPU's environment.

    Args:
        settings: network and training.
        graphs: of all holders, without edge weights, all nodes common.
        label_party: who has the labels.
        seed: of the first weights.
        python: of ``spu_python``.
        timeout_s: for the training.

    Raises:
        DataError: a graph has edge weights or nodes of its own.
        RunError: the program failed or took too long, or wrote something else.
    """
    with TemporaryDirectory(prefix="veilgraph-spu-") as name:
        folder = Path(name)
        write_inputs(folder, settings, graphs, label_party, seed, settings.epochs, public_adjacency=False)
        run_together([[str(python), str(_PROGRAM), "train", name]], folder, timeout_s)
        predictions = read_arrays(folder / "twin.npz", "predictions")["predictions"]
    labelled = find_label_holder(graphs, label_party)
    val, test = (_accuracy(predictions, labelled, mask) for mask in (labelled.val_mask, labelled.test_mask))
    best = int(val.argmax())
    return TwinScores(float(val[best]), float(test[best]), (best + 1) * settings.evaluate_every)


def secure_epochs(
    settings: SecureGNN,
    graphs: Sequence[PartyGraph],
    label_party: PartyId,
    seed: int,
    python: Path,
    timeout_s: float,
    *,
    epochs: int,
    public_adjacency: bool = False,
) -> SecureEpochs:
    """Trains some epochs under SPU, every holder a process, and compares the weights with the twin's.

    Args:
        settings: network and training, but for its epochs.
        graphs: as in ``twin_scores``.
        label_party: who has the labels.
        seed: of the first weights.
        python: of ``spu_python``.
        timeout_s: for the training, sharing included.
        epochs: how many.
        public_adjacency: whether the edges are known to all; else they are secret-shared.

    Raises:
        DataError: as in ``twin_scores``.
        RunError: likewise, or a weight is farther than ``TOLERANCE`` from the twin's.
    """
    with TemporaryDirectory(prefix="veilgraph-spu-") as name:
        folder = Path(name)
        write_inputs(folder, settings, graphs, label_party, seed, epochs, public_adjacency=public_adjacency)
        run_together([[str(python), str(_PROGRAM), "train", name]], folder, timeout_s)
        holders = [[str(python), str(_PROGRAM), "hold", name, str(rank)] for rank in range(len(graphs))]
        run_together(holders, folder, timeout_s)
        return read_epochs(folder, len(graphs))


def read_epochs(folder: Path, holders: int) -> SecureEpochs:
    """What the holders and the twin wrote.

    Raises:
        RunError: a file is missing or has something else in it, or a weight is too far from the twin's.
    """
    figures = ("seconds", "cpu_seconds", "sent_bytes", "setup_seconds", "peak_bytes")
    held = [read_arrays(folder / f"held{rank}.npz", *figures) for rank in range(holders)]
    first, twin = read_arrays(folder / "shared.npz", "weight0"), read_arrays(folder / "twin.npz", "weight0")
    names = [name for name in first if name.startswith("weight")]
    try:
        difference = max(float(np.abs(held[0][name] - twin[name]).max()) for name in names)
        moved = max(float(np.abs(first[name] - twin[name]).max()) for name in names)
    except (KeyError, ValueError) as error:
        raise RunError(
            f"SPU: the weights are not those of the plaintext twin ({error}); is this the pinned version?",
            code="no-twin",
        ) from error
    if not difference <= TOLERANCE:
        raise RunError(
            f"SPU: a weight is {difference:.2g} away from the plaintext twin's, above {TOLERANCE:g}; values have left "
            "the range of its fixed point, so lower the learning rate or feature_factor",
            code="off",
            value=difference,
        )
    return SecureEpochs(
        seconds=tuple(np.max([each["seconds"] for each in held], axis=0).tolist()),
        cpu_seconds=tuple(np.sum([each["cpu_seconds"] for each in held], axis=0).tolist()),
        sent_bytes=max(int(each["sent_bytes"].max()) for each in held),
        setup_seconds=max(float(each["setup_seconds"]) for each in held),
        peak_bytes=max(int(each["peak_bytes"]) for each in held),
        difference=difference,
        moved=moved,
    )


def _accuracy(predictions: Array, labelled: PartyGraph, mask: Tensor | None) -> Array:
    """float64 [evaluations], of the nodes in ``mask``; ``predictions`` has the nodes in the files' order."""
    if labelled.labels is None or mask is None:
        raise DataError(f"party {labelled.party!r}: accuracy needs labels, validation and test nodes; give all masks")
    order = training_first(labelled)
    right: Array = predictions == labelled.labels.numpy()[order]
    share: Array = right[:, mask.numpy()[order]].mean(axis=1)
    return share
