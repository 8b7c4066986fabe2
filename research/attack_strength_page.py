"""The page of the attacks on plain networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from research.attack_strength_models import LEARNING_RATE, PlainSettings
from research.attack_strength_settings import StrengthSettings
from research.attack_strength_solved import LINKS, MANY, WIDTH
from research.markdown import mean_and_spread
from research.store import package_version

Measured = dict[str, dict[str, Any]]
"""Attack → figure → value, or interval as value, low, high and confidence."""

_TITLE: Final = "The attacks on plain networks"
_AUC: Final = {"AUC": "auc"}
_RARE: Final = {"TPR at 0.1 % FPR": "tpr_at_0_1_percent", "TPR at 1 % FPR": "tpr_at_1_percent"}
_ADVANTAGE: Final = {"advantage": "advantage"}
_COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "membership": {**_AUC, **_ADVANTAGE, **_RARE},
    "links": {**_AUC, **_RARE},
    "solved features": {**_AUC, **_RARE},
    "hops": {**_AUC, **_RARE},
    "attributes": {**_AUC, **_ADVANTAGE, "accuracy": "accuracy", "the prior's": "prior_accuracy"},
    "labels": {**_AUC, "accuracy": "accuracy"},
}
"""Family → heading → figure."""
_PUBLISHED: Final[Mapping[str, str]] = {
    "membership": "Duddu et al. 2020: the slides have a picture without numbers; the paper's abstract says an accuracy "
    "of up to 28 % beyond a random guess from predictions, an advantage of 0.56 if that is an accuracy of 0.78.",
    "links": "He et al. 2021: the slides have a picture without numbers; the paper's abstract says AUC above 0.95 "
    "in multiple cases over eight data sets.",
    "attributes": "Duddu et al. 2020: the slides have a picture without numbers, of other data sets and attributes; "
    "the paper's abstract has no number either.",
    "labels": "Arazzi et al. 2023: the abstract says nearly 100 % accuracy in most cases, and above 90 % where neither "
    "the architecture nor the number of classes is known; Fu et al. 2022 measure other data (images, text, tables).",
    "solved features": "Luo et al. 2021: the equations give up to C − 1 unknown features exactly, an AUC "
    "of 1; of more, figures are pictures, of other data sets. Of X·W nothing is published.",
    "hops": "nothing.",
}


def strength_page(
    found: Mapping[tuple[str, str], Sequence[Measured]],
    seconds: float,
    settings: StrengthSettings,
    seeds: int,
    command: str,
) -> str:
    """Tables of all attacks, and below them how they came about and what was published.

    Args:
        found: (data set, family) → what each seed measured.
        seconds: that all of it took.
        settings: of networks and adversaries.
        seeds: how many.
        command: that makes the page.

    Returns:
        Markdown, ending with a newline.
    """
    lines = [f"# {_TITLE}", ""]
    for (dataset, family), measured in found.items():
        columns = _COLUMNS[family]
        lines += [f"| {dataset}, {family} | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
        for attack in measured[0]:
            cells = [
                mean_and_spread([_value(seed[attack][figure]) for seed in measured]) for figure in columns.values()
            ]
            lines.append(f"| {attack} | {' | '.join(cells)} |")
        lines.append("")
    families = {family for _, family in found}
    spread = "One seed" if seeds == 1 else f"Mean ± sample standard deviation over {seeds} seeds"
    notes = [f"{spread} of divisions, networks and attacks; each seed's bootstrap intervals are in the JSON beside."]
    for family in [family for family in _COLUMNS if family in families]:
        notes += [_SETTINGS[family](settings), f"Published, {family}: {_PUBLISHED[family]}"]
    notes.append(
        f"{seconds:,.1f} seconds; veilgraph {package_version()}, torch {torch.__version__}. Made with `{command}`."
    )
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def _membership(settings: StrengthSettings) -> str:
    networks = "; ".join(_network(network) for network in (*settings.inductive, settings.transductive))
    return (
        "Membership: inductive, members are a random half of a random half of the nodes, the network is trained on "
        "their own subgraph with all their labels and asked about that whole half, and the shadow's graph is the other "
        "half; transductive, members are the public split's training nodes, the network sees the whole graph, and the "
        f"shadow's graph is half of the nodes, without any member. Networks: {networks}. Features as they are. "
        f"{settings.out_models} networks are trained for LiRA; half of the inductive ones have not seen a given node. "
        "Thresholds of the advantage are fixed on the adversary's own networks. The last three attacks know the nodes' "
        "labels. Online LiRA's transductive targets are the members and as many others, and each of as many networks "
        "more is trained on half of them."
    )


def _links(settings: StrengthSettings) -> str:
    return (
        f"Links: {_network(settings.links)}, learns from {settings.training_share:.0%} of the nodes, features scaled "
        f"to a sum of 1. F are the words of at least {settings.frequent} nodes, A* {settings.partial_share:.0%} of the "
        "links and as many unlinked pairs, DS' the other data set with a network of its own. As many unlinked pairs as "
        "links are attacked. Attacks 0 and 2 by the correlation distance where none is named; attack 2 adds up the "
        "distances of posteriors and of attributes where nothing else is named. LinkTeller knows all features and "
        f"doubles those of {settings.queries} nodes, one after the other; attacked are their links and as many other "
        "pairs."
    )


def _attributes(settings: StrengthSettings) -> str:
    return (
        f"Attributes: {_network(settings.attributes)}, learns from {settings.training_share:.0%} of the nodes, "
        f"features scaled to a sum of 1. The {settings.words} words nearest to half of the nodes are private and "
        f"taken out of its input; the adversary knows them of {settings.auxiliary_share:.0%} of the nodes and trains a "
        "logistic regression. The prior's accuracy is that of naming the usual value. The advantage weighs nodes "
        "with and without the word alike, at the threshold of the known nodes' share of the word."
    )


def _labels(settings: StrengthSettings) -> str:
    return (
        "Labels: a network split between two holders with half of the features and edges each (concat, two hops at "
        f"each, {settings.split_width} wide, {settings.split_epochs} epochs), whose training nodes are half of the "
        "nodes; the other holder attacks. Blind: pairs of training nodes from its gradients, no label known; accuracy "
        "with the names that fit the groups best. Passive and active: its own local network, and three known labels a "
        "class, for the other half of the nodes; an active holder's steps are up to five times as long."
    )


def _solved(settings: StrengthSettings) -> str:
    return (
        f"Solved features: a logistic regression of the words of at least {settings.frequent} nodes; of C − 1 and of "
        f"{MANY} words, those nearest to half of the nodes, the adversary knows {settings.auxiliary_share:.0%} of the "
        "nodes' and all other words. Equations are solved with the model's weights, and with weights fitted to known "
        f"nodes. X·W is {WIDTH} wide, W normal, half of the words unknown."
    )


def _hops(settings: StrengthSettings) -> str:
    return f"Hops: the mean over neighbours of X·W, {WIDTH} wide, W normal; {LINKS} links and as many other pairs."


_SETTINGS: Final[Mapping[str, Callable[[StrengthSettings], str]]] = {
    "membership": _membership,
    "links": _links,
    "attributes": _attributes,
    "labels": _labels,
    "solved features": _solved,
    "hops": _hops,
}
"""Family → what its networks and adversaries were."""


def _network(network: PlainSettings) -> str:
    return (
        f"{network.kind} of 2 layers, {network.width} wide, {network.epochs} epochs of Adam at {LEARNING_RATE:g}, "
        f"dropout {network.dropout:g}, weight decay {network.weight_decay:g}"
    )


def _value(figure: Any) -> float:  # noqa: ANN401 - from JSON: a number, or an interval
    return float(figure["value"] if isinstance(figure, dict) else figure)
