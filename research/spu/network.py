"""SecureGNN's network and one step of its training in JAX: the same functions run in plaintext and under SPU.

    h⁰ = X·W⁰                                              X: all holders' columns side by side
    hᵏ = tanh₃(hᵏ⁻¹·Wᵏ₁ + mean of the neighbours' hᵏ⁻¹·Wᵏ₂)     k = 1 … K; rows of the last one to length 1
    logits = sigmoid₃(hᴷ·V + b)·U + c

tanh₃ and sigmoid₃ are cubic polynomials. Softmax is JAX's own; under SPU that is SPU's approximation of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax  # type: ignore[import-not-found]
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np

Weights = tuple[jnp.ndarray, ...]
"""W⁰ [F, d]; V [d, d], b [d], U [d, C], c [C]; then Wᵏ₁, Wᵏ₂ [d, d] of every hop."""
SMALLEST = 1e-4
"""Added to a row's squared length before it is divided by: far above the last place of SPU's fixed point."""


@dataclass(frozen=True)
class Task:
    """What both holders are told; all of it is public.

    Attributes:
        hosts: ``address:port`` of every holder.
        widths: F_i, columns of every holder.
        epochs: to train.
        evaluate_every: epochs between two predictions; of the plaintext twin alone.
        tanh: offset, linear and cubic coefficient of tanh₃.
        sigmoid: the same of sigmoid₃.
        learning_rate: of SGD on the sum over the training nodes.
        first_learning_rate: the same for W⁰.
        momentum: of SGD.
        weight_decay: added to the gradient, times the weight.
        public_adjacency: whether edges are known to all.
    """

    hosts: list[str]
    widths: list[int]
    epochs: int
    evaluate_every: int
    tanh: tuple[float, float, float]
    sigmoid: tuple[float, float, float]
    learning_rate: float
    first_learning_rate: float
    momentum: float
    weight_decay: float
    public_adjacency: bool


def load(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; one that holds objects is refused."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def network(
    task: Task, neighbours: Callable[[jnp.ndarray], jnp.ndarray], features: jnp.ndarray, weights: Weights
) -> jnp.ndarray:
    """Logits [N, C] of all nodes.

    Args:
        task: names the polynomials.
        neighbours: [N, d] → the mean over every node's neighbours, [N, d].
        features: [N, F].
        weights: as ``Weights`` says.
    """
    first, hidden, hidden_bias, output, output_bias, *hops = weights
    h = features @ first
    for own, others in zip(hops[::2], hops[1::2], strict=True):
        h = _cubic(task.tanh, h @ own + neighbours(h) @ others)
    h = h * jax.lax.rsqrt(jnp.sum(h * h, axis=1, keepdims=True) + SMALLEST)
    return _cubic(task.sigmoid, h @ hidden + hidden_bias) @ output + output_bias


def step(
    task: Task,
    neighbours: Callable[[jnp.ndarray], jnp.ndarray],
    features: jnp.ndarray,
    labels: jnp.ndarray,
    weights: Weights,
    velocity: Weights,
) -> tuple[Weights, Weights]:
    """One step of SGD with momentum on softmax cross entropy, summed over the training nodes.

    Args:
        task: names the polynomials and rates.
        neighbours: as in ``network``.
        features: [N, F], the T training nodes first.
        labels: [T, C], 1 at a node's class.
        weights: as ``Weights`` says.
        velocity: the same shapes.

    Returns:
        The new weights and velocity.
    """
    logits, back = jax.vjp(lambda those: network(task, neighbours, features, those)[: len(labels)], weights)
    (gradients,) = back(jax.nn.softmax(logits) - labels)
    moved = tuple(
        task.momentum * speed + gradient + task.weight_decay * weight
        for speed, gradient, weight in zip(velocity, gradients, weights, strict=True)
    )
    rates = [task.first_learning_rate] + [task.learning_rate] * (len(weights) - 1)
    return tuple(weight - rate * speed for weight, rate, speed in zip(weights, rates, moved, strict=True)), moved


def train(task: Task, holders: list[dict[str, np.ndarray]], shared: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The plaintext twin: the same steps on pooled data in float32.

    Args:
        task: what to train.
        holders: of each: ``features`` [N, F_i], ``edge_index`` [2, E_i] with the target in row 1.
        shared: ``labels`` [T, C] and the first weights ``weight0``, ``weight1``, ….

    Returns:
        ``weight0``, … after the last epoch, and ``predictions`` [epochs / evaluate_every, N] uint8.
    """
    features = jnp.concatenate([holder["features"] for holder in holders], axis=1)
    source, target = np.concatenate([holder["edge_index"] for holder in holders], axis=1)
    nodes = len(features)
    inverse = (1 / np.maximum(np.bincount(target, minlength=nodes), 1)).astype(np.float32)[:, None]

    def neighbours(h: jnp.ndarray) -> jnp.ndarray:
        return inverse * jax.ops.segment_sum(h[source], target, nodes)

    weights: Weights = tuple(jnp.asarray(weight) for weight in numbered(shared))
    velocity: Weights = tuple(map(jnp.zeros_like, weights))
    labels = jnp.asarray(shared["labels"])
    advance = jax.jit(lambda *state: step(task, neighbours, features, labels, *state))
    predict = jax.jit(lambda those: jnp.argmax(network(task, neighbours, features, those), axis=1))
    predictions = []
    for epoch in range(1, task.epochs + 1):
        weights, velocity = advance(weights, velocity)
        if epoch % task.evaluate_every == 0:
            predictions.append(np.asarray(predict(weights), np.uint8))
    return {**{f"weight{n}": np.asarray(w) for n, w in enumerate(weights)}, "predictions": np.array(predictions)}


def numbered(arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """``weight0``, ``weight1``, … in order."""
    return [arrays[f"weight{number}"] for number in range(sum(name.startswith("weight") for name in arrays))]


def _cubic(coefficients: tuple[float, float, float], x: jnp.ndarray) -> jnp.ndarray:
    offset, linear, cubic = coefficients
    return offset + x * (linear + cubic * (x * x))
