"""SecureGNN: its polynomials, its files and its failures; with SPU's environment, the network and a run itself."""

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from research.secure_gnn import secure_epochs
from research.secure_gnn_cubic import sigmoid
from research.secure_gnn_files import SIGMOID, TANH, SecureGNN, read_arrays, write_inputs
from research.secure_gnn_spu import PROGRAMS, PYTHON_VARIABLE, REQUIREMENTS, run_together, spu_python
from tests.errors import refused
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.party import PartyGraph

SMALL = SecureGNN(dim=4, hops=2, epochs=6)


def with_spu() -> bool:
    try:
        spu_python()
    except ConfigError:
        return False
    return True


def tiny_graphs() -> list[PartyGraph]:
    """Six nodes on a path that A and B have halves of, and one alone; nodes 1, 4 and 5 are for training."""
    generator = torch.Generator().manual_seed(0)

    def graph(party, edges, columns):
        pairs = torch.tensor(edges).T
        features = torch.rand(7, columns, generator=generator) / 20
        return PartyGraph(party, features, torch.cat([pairs, pairs.flip(0)], dim=1))

    def mask(*nodes):
        return torch.tensor([node in nodes for node in range(7)])

    labelled = replace(
        graph("A", [(0, 1), (1, 2), (2, 3)], 3),
        labels=torch.tensor([0, 1, 1, 0, 0, 1, 0]),
        train_mask=mask(1, 4, 5),
        val_mask=mask(0, 2),
        test_mask=mask(3, 6),
        num_classes=2,
    )
    return [labelled, graph("B", [(3, 4), (4, 5)], 2)]


def interpreter(folder: Path, script: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("fit", "function", "largest"), [(TANH, np.tanh, 0.08), (SIGMOID, sigmoid, 0.04)])
def test_the_cubics_are_the_least_squares_fits_within_their_stated_error(fit, function, largest):
    x = np.linspace(-fit.radius, fit.radius, 1001)
    cubic, square, linear, offset = np.polyfit(x, function(x), 3)
    np.testing.assert_allclose(fit.coefficients, (offset, linear, cubic), rtol=2e-3, atol=1e-12)
    assert abs(square) < 1e-12
    deviation = np.abs(fit.offset + fit.linear * x + fit.cubic * x**3 - function(x)).max()
    assert deviation == pytest.approx(fit.error, rel=1e-3)
    assert deviation < largest


def test_without_the_environment_the_error_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"\.venv-spu/bin/python does not exist.*`make spu`.*requirements\.txt"):
        spu_python()
    monkeypatch.setenv(PYTHON_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"{PYTHON_VARIABLE}={tmp_path}/none"):
        spu_python()
    monkeypatch.setenv(PYTHON_VARIABLE, str(interpreter(tmp_path, "true")))
    assert spu_python() == tmp_path / "python"
    assert "spu==" in REQUIREMENTS.read_text(encoding="utf-8")
    assert (PROGRAMS / "program.py").is_file()


def test_one_process_that_fails_ends_the_others_with_its_last_line(tmp_path):
    started = time.monotonic()
    failing = ["sh", "-c", "echo first >&2; echo no such ring >&2; exit 3"]
    with refused(RunError, code="status", value=3):
        run_together([["sleep", "30"], failing], tmp_path, 20)
    with refused(RunError, code="timeout", value=0.1):
        run_together([["sleep", "30"]], tmp_path, 0.1)
    with refused(RunError, key="VEILGRAPH_SPU_PYTHON"):
        run_together([[str(tmp_path / "none")]], tmp_path, 1)
    assert time.monotonic() - started < 10


def test_the_files_have_the_training_nodes_first_and_the_same_graph(tmp_path):
    graphs = tiny_graphs()
    write_inputs(tmp_path, SMALL, graphs[::-1], "A", 0, 3, public_adjacency=True)
    order = [1, 4, 5, 0, 2, 3, 6]
    for rank, graph in enumerate(graphs):  # whoever has the labels is the first
        written = read_arrays(tmp_path / f"holder{rank}.npz")
        np.testing.assert_array_equal(written["features"], 10 * graph.features.numpy()[order])
        renamed = {(order[source], order[target]) for source, target in written["edge_index"].T}
        assert renamed == set(map(tuple, graph.edge_index.T.tolist()))
    shared = read_arrays(tmp_path / "shared.npz")
    np.testing.assert_array_equal(shared["labels"], [[0, 1], [1, 0], [0, 1]])
    shapes = [shared[f"weight{number}"].shape for number in range(9)]
    assert shapes == [(5, 4), (4, 4), (4,), (4, 2), (2,), *[(4, 4)] * 4]


def obvious_step(folder: Path) -> list[torch.Tensor]:
    """One step of SecureGNN from its files by autograd, with a dense matrix of means."""
    shared = read_arrays(folder / "shared.npz")
    holders = [read_arrays(folder / f"holder{rank}.npz") for rank in range(2)]
    weights = [torch.tensor(shared[f"weight{n}"], dtype=torch.float64, requires_grad=True) for n in range(9)]
    x = torch.cat([torch.tensor(holder["features"], dtype=torch.float64) for holder in holders], dim=1)
    mean = torch.zeros(7, 7, dtype=torch.float64)
    for holder in holders:
        for source, target in holder["edge_index"].T:
            mean[target, source] += 1
    mean /= mean.sum(dim=1, keepdim=True).clamp(min=1)

    def cubic(fit, value):
        return fit.offset + fit.linear * value + fit.cubic * value**3

    h = x @ weights[0]
    for own, others in (weights[5:7], weights[7:9]):
        h = cubic(TANH, h @ own + mean @ h @ others)
    h = h / (h.square().sum(dim=1, keepdim=True) + 1e-4).sqrt()
    logits = cubic(SIGMOID, h @ weights[1] + weights[2]) @ weights[3] + weights[4]
    labels = torch.tensor(shared["labels"]).argmax(dim=1)
    decay = SMALL.weight_decay / 2 * sum(weight.square().sum() for weight in weights)
    loss = torch.nn.functional.cross_entropy(logits[: len(labels)], labels) + decay
    gradients = torch.autograd.grad(loss, weights)
    rates = [SMALL.first_learning_rate] + [SMALL.learning_rate] * 8
    moves = zip(weights, rates, gradients, strict=True)
    return [(weight - rate * gradient).detach() for weight, rate, gradient in moves]


@pytest.mark.skipif(not with_spu(), reason=f"SPU's environment is not installed: make spu, or {PYTHON_VARIABLE}")
def test_under_spu_a_step_is_that_of_autograd(tmp_path):
    python = spu_python().absolute()
    write_inputs(tmp_path, SMALL, tiny_graphs(), "A", 0, 1, public_adjacency=False)
    run_together([[str(python), str(PROGRAMS / "program.py"), "train", str(tmp_path)]], tmp_path, 300)
    twin = read_arrays(tmp_path / "twin.npz")
    for number, weight in enumerate(obvious_step(tmp_path)):
        np.testing.assert_allclose(twin[f"weight{number}"], weight.numpy(), rtol=0, atol=1e-6)
    for public in (False, True):
        epochs = secure_epochs(SMALL, tiny_graphs(), "A", 0, python, 300, epochs=2, public_adjacency=public)
        assert len(epochs.seconds) == 2
        assert 0 < epochs.difference < 2e-4 < epochs.moved
