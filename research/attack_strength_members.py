"""Membership inference on networks that are overfit: what is trained by whom, and what each attack scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from research.attack_strength_models import PlainSettings, classes_of, induced, train_plain
from research.attack_strength_settings import Attacked, StrengthSettings, own_seed
from veilgraph.audit.features import auxiliary_nodes
from veilgraph.audit.members import SHADOW_THRESHOLD, confidence_scores, lira_scores, online_lira_scores, shadow_scores
from veilgraph.audit.statistics import Truth, measure
from veilgraph.graph.builtin import random_masks
from veilgraph.protocol.view import Floats


@dataclass(frozen=True, eq=False)
class _Target:
    """A network, its shadow and its out-models, as posteriors: of T targets; of S shadow nodes.

    The online attack has targets and models of its own: places [P] among the targets, posteriors [M, P, C], and which
    of them each model was trained on, [M, P].
    """

    posteriors: Floats
    labels: NDArray[Any]
    members: Truth
    shadow: Floats
    shadow_labels: NDArray[Any]
    shadow_members: Truth
    outside: list[Floats]
    out: list[Truth]
    online: tuple[NDArray[Any], Floats, Truth]


def membership(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """Membership inference of Duddu et al. 2020, and LiRA, on overfit networks.

    Inductive: a random half of the nodes is the target's, the other the adversary's. Members are half of the target's
    half; the network is trained on the members' subgraph and all their labels, and asked about the whole half. The
    shadow network is trained alike in the other half. Transductive: the network sees the whole graph and the labels of
    its training nodes, the members; the shadow's graph is half of the nodes, without any of them.

    Out-models are trained as the attacked network is, on other members of the same graph; half of the inductive ones
    have not seen a given target, and nearly all of the transductive ones. The online attack has the same
    inductive ones; its transductive ones are trained on halves of its targets, the members and as many others.
    """
    found: dict[str, Attacked] = {}
    targets = {f"inductive {network.kind}": _inductive(data, network, settings, seed) for network in settings.inductive}
    targets[f"transductive {settings.transductive.kind}"] = _transductive(data, settings, seed)
    for name, target in targets.items():
        found |= {f"{name}: {attack}": attacked for attack, attacked in _member_attacks(target).items()}
    return found


def _inductive(data: Data, network: PlainSettings, settings: StrengthSettings, seed: int) -> _Target:
    classes, own = classes_of(data), _half(len(data.y), seed, 0)
    target, shadow = induced(data, own), induced(data, ~own)

    def posteriors(graph: Data, members: Tensor, number: int) -> Floats:
        known = induced(graph, members)
        trained = train_plain(known, torch.ones_like(known.y, dtype=torch.bool), classes, network, seed=seed + number)
        return trained.outputs(graph).posteriors

    members, shadow_members = _half(len(target.y), seed, 1), _half(len(shadow.y), seed, 2)
    halves = [_half(len(target.y), seed, 3 + pair) for pair in range(settings.out_models // 2)]
    trained = [side for half in halves for side in (half, ~half)]
    outside = [posteriors(target, seen, 2 + number) for number, seen in enumerate(trained)]
    return _Target(
        posteriors(target, members, 0),
        target.y.numpy(),
        members.numpy(),
        posteriors(shadow, shadow_members, 1),
        shadow.y.numpy(),
        shadow_members.numpy(),
        outside,
        [~seen.numpy() for seen in trained],
        (np.arange(len(target.y)), np.stack(outside), np.stack([seen.numpy() for seen in trained])),
    )


def _transductive(data: Data, settings: StrengthSettings, seed: int) -> _Target:
    classes, per_class = classes_of(data), int(data.train_mask.sum()) // classes_of(data)
    apart = _half(len(data.y), seed, 0) & ~data.train_mask
    targets, shadow = ~apart, induced(data, apart)

    def posteriors(graph: Data, members: Tensor, number: int) -> Floats:
        trained = train_plain(graph, members, classes, settings.transductive, seed=seed + number)
        return trained.outputs(graph).posteriors

    def drawn(graph: Data, number: int) -> Tensor:
        return random_masks(graph.y, per_class, 0, seed=own_seed(seed, number))["train_mask"]

    shadow_members = drawn(shadow, 1)
    trained = [drawn(data, 2 + number) for number in range(settings.out_models)]
    asked = _as_many_others(data.train_mask, targets & ~data.train_mask, seed, 2 + settings.out_models)
    halves = [_half(len(asked), seed, 3 + settings.out_models + pair) for pair in range(settings.out_models // 2)]
    with_half = [side for half in halves for side in (half, ~half)]
    online = list[Floats]()
    for number, half in enumerate(with_half):
        known = torch.zeros_like(data.train_mask)
        known[asked[half]] = True
        online.append(posteriors(data, known, 2 + settings.out_models + number)[asked.numpy()])
    return _Target(
        posteriors(data, data.train_mask, 0)[targets],
        data.y[targets].numpy(),
        data.train_mask[targets].numpy(),
        posteriors(shadow, shadow_members, 1),
        shadow.y.numpy(),
        shadow_members.numpy(),
        [posteriors(data, seen, 2 + number)[targets] for number, seen in enumerate(trained)],
        [~seen[targets].numpy() for seen in trained],
        (targets.cumsum(0)[asked].numpy() - 1, np.stack(online), np.stack([half.numpy() for half in with_half])),
    )


def _member_attacks(target: _Target) -> dict[str, Attacked]:
    """Thresholds come from what the adversary trained itself: for LiRA, its first out-model in the target's place."""
    shadow = target.shadow, target.shadow_members
    labels, outside, out = target.labels, np.stack(target.outside), np.stack(target.out)

    def attacked(scores: Floats, threshold: float) -> Attacked:
        return Attacked(scores, target.members, threshold)

    def threshold(labels: NDArray[Any] | None) -> float:
        return measure(confidence_scores(target.shadow, labels), target.shadow_members).best_threshold()

    asked, with_and_without, inside = target.online
    online = online_lira_scores(target.posteriors[asked], labels[asked], with_and_without, inside)
    own = measure(lira_scores(outside[0], labels, outside[1:], out[1:]), ~out[0]).best_threshold()
    return {
        "confidence": attacked(confidence_scores(target.posteriors), threshold(None)),
        "shadow": attacked(shadow_scores(target.posteriors, *shadow), SHADOW_THRESHOLD),
        "confidence in the label": attacked(
            confidence_scores(target.posteriors, labels), threshold(target.shadow_labels)
        ),
        "LiRA": attacked(lira_scores(target.posteriors, labels, outside, out), own),
        "online LiRA": Attacked(online, target.members[asked], 0.0),
    }


def _as_many_others(members: Tensor, others: Tensor, seed: int, number: int) -> Tensor:
    """The members and as many of the others, [P] int64."""
    inside, outside = members.nonzero()[:, 0], others.nonzero()[:, 0]
    random = torch.Generator().manual_seed(own_seed(seed, number))
    return torch.cat([inside, outside[torch.randperm(len(outside), generator=random)[: len(inside)]]])


def _half(count: int, seed: int, number: int) -> Tensor:
    return torch.from_numpy(auxiliary_nodes(count, 0.5, seed=own_seed(seed, number)))
