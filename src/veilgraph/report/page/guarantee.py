"""What a job's differential privacy says, what it is about and what it is not about, in words."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from veilgraph.core.words import listed
from veilgraph.privacy.local.settings import FeatureReleaseSettings, LabelPrivacySettings
from veilgraph.privacy.sampled_settings import SampledPlan
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.epsilon import NO_PERSON, OF_NODES, holds_against
from veilgraph.report.labels import OF_SEVERAL, compared_with, whose_labels

_UNITS: Final = MappingProxyType(
    {
        "row": "one row of one published matrix: what one message says of one node",
        "edge": "one edge: everything that a holder records between one pair of nodes",
        "node": "one node's features at one holder, all columns together",
        "node-edges": "one node's features and all its edges at one holder",
    }
)
_RELATIONS: Final = MappingProxyType(
    {"zero-out": "as it is, or empty", "replacement": "as it is, or replaced by any other"}
)
_NOT: Final = MappingProxyType(
    {
        "row": "It is not about a person, and not about an edge: what a holder has of either reaches many rows.",
        "edge": "It is not about a node's features, nor about labels.",
        "node": "It is not about edges, nor about labels.",
        "node-edges": "It is not about labels, nor about which nodes there are.",
    }
)
_BOUND: Final = (
    "Whatever a receiver knows besides and computes from what it got, it can hardly tell two data sets apart that "
    "differ in one unit: the odds of any conclusion differ by a factor of at most e to the power of the total ε, but "
    "for a probability δ. Small is strong: below 1 says much, above about 16 says little."
)
_NOISELESS: Final = (
    "Clipping without noise protects nothing: noise_multiplier is 0, and ε is infinite, as without differential "
    "privacy."
)
_NONE: Final = (
    "This job has no differential privacy. What parties receive is not noised, and no number bounds what they can "
    "infer from it: per-release ε and total ε are infinite for every holder."
)


@dataclass(frozen=True)
class Guarantee:
    """What an ε of the job means.

    Attributes:
        scope: in a few words; empty where there is no differential privacy.
        statement: what is guaranteed, or that nothing is.
        about: what the guarantee is about, by name.
        limits: what it is not about.
    """

    scope: str
    statement: str
    about: tuple[tuple[str, str], ...] = ()
    limits: tuple[str, ...] = ()


def guarantee(job: JobSettings, delta: float | None = None) -> Guarantee:
    """The guarantee of a job, in words; a δ that the job leaves open is the ledgers', where they say one."""
    if job.privacy is not None and job.feature_release is not None:
        return _of_both(_published(job, job.privacy, delta), _perturbed(job, job.feature_release), job)
    if job.privacy is not None:
        return _published(job, job.privacy, delta)
    if job.feature_release is not None:
        return _perturbed(job, job.feature_release)
    if job.label_privacy is not None:
        return _labels(job, job.label_privacy)
    if job.training_plan is not None:
        return _trained(job, job.training_plan)
    return Guarantee("", _NONE)


def _published(job: JobSettings, settings: PrivacySettings, delta: float | None) -> Guarantee:
    against, known = holds_against(job), settings.delta or delta
    at = OF_NODES if known is None else f"δ = {known:g}"
    about = (
        ("unit", _UNITS[settings.unit]),
        ("neighbouring relation", f"{settings.relation}: the unit {_RELATIONS[settings.relation]}"),
        ("δ", at.removeprefix("δ = ")),
        ("mechanism", f"{settings.mechanism}, {_releases(settings)}"),
        ("holds against", against),
    )
    limits = [_NOT[settings.unit]]
    limits += paradigm_of(job).privacy_limits(job)
    if settings.once and not job.summing:
        limits.append(f"{job.data.label_party}, the label holder, publishes nothing before it hands on predictions.")
    handed = "" if job.summing else ", and predictions and scores that the label holder hands on"
    limits += [
        "Each holder's ε is about its own data; where a person is in the data of several, their ε add up.",
        "Not counted: how many nodes and columns there are, which nodes are common, sizes and times of messages, "
        f"choices made by looking at data{handed}.",
    ]
    what = NO_PERSON if settings.unit == "row" else ""
    whose = listed(job.summing) if job.summing else "every holder"
    scope = f"of {whose}'s {settings.unit}s{what}, at {at}, against {against}"
    return Guarantee(scope, _NOISELESS if settings.noise_multiplier == 0 else _BOUND, about, tuple(limits))


def _releases(settings: PrivacySettings) -> str:
    if settings.aggregation is not None:
        return f"one release, with noise in each of its hops ({settings.aggregation.hops})"
    return "one release" if settings.once else "a release in every step"


def _trained(job: JobSettings, plan: SampledPlan) -> Guarantee:
    given, at = plan.settings, f"δ = {plan.delta:g}"
    against = plan.against
    bound = "edges are not used" if given.degree_bound is None else f"no node has more than {given.degree_bound}"
    about = (
        ("unit", "one node's features, label and all its edges at one holder, and whether it is trained on"),
        ("neighbouring relation", f"{given.neighbours}: the unit {_RELATIONS[given.neighbours]}"),
        ("δ", f"{plan.delta:g}"),
        ("mechanism", f"sums of clipped gradients of sampled training nodes, Gaussian noise, {plan.steps:,} rounds"),
        ("neighbours of a node", bound),
        ("holds against", against),
    )
    limits = (
        "Each holder's ε is about its own data; where a person is in the data of several, their ε add up.",
        "Not counted: whether a holder has labels, how many classes and columns there are, sizes and times of "
        "messages, that a node breaks the bound on neighbours, choices made by looking at data, and scores and "
        "predictions that a holder hands on.",
        *paradigm_of(job).privacy_limits(job),
    )
    return Guarantee(f"of every holder's nodes with label and edges, at {at}, against {against}", _BOUND, about, limits)


def _labels(job: JobSettings, private: LabelPrivacySettings) -> Guarantee:
    several = [f"{OF_SEVERAL.capitalize()}."] if len(job.perturbing) > 1 else []
    handing = "hand" if several else "hands"
    about = (
        ("unit", f"one label, at one holder, of a {whose_labels(job, 'or')} node"),
        ("neighbouring relation", "replacement: the node's own class, or any other"),
        ("δ", "0: the bound always holds"),
        ("mechanism", f"randomised response, ε {private.epsilon:g}, a single time, at {listed(job.perturbing)}"),
        ("holds against", "everybody, all parties together"),
    )
    limits = (
        "It is about labels alone: features and edges are not noised, and for them per-release ε and total ε are "
        "infinite.",
        "Which nodes have a label for training, and how many classes there are, is not hidden.",
        f"Not counted: predictions and scores that {listed(job.perturbing)} {handing} on. {compared_with(job)}",
        *several,
    )
    return Guarantee("of one label, against everybody", _BOUND, about, limits)


def _perturbed(job: JobSettings, release: FeatureReleaseSettings) -> Guarantee:
    labels = job.label_release
    about = [
        ("unit", "what one node releases at one holder, all its features together"),
        ("neighbouring relation", "replacement: the node's own values, or any others in the declared range"),
        ("δ", "0: the bound always holds" if release.delta is None else f"{release.delta:g}"),
        ("features", f"{release.mechanism}, ε {release.epsilon:g}, perturbed once at {listed(job.releasing)}"),
    ]
    if labels is not None:
        about.append(("labels", f"randomised response, ε {labels.epsilon:g} more, at {labels.holder}"))
    about.append(("holds against", "everybody, all parties together"))
    if job.summing:
        edges = f"Edges are {listed(job.summing)}'s, with an ε of their own."
    elif not job.learns_alone:
        edges = "Edges and labels are not noised: for them per-release ε and total ε are infinite."
    else:
        edges = f"Edges are not noised: {job.data.label_party}, which learns, has them and sends nothing of them."
    limits = (
        edges,
        "Which nodes there are, and which have a label for training, is not hidden.",
        "Where a person's values are at several holders, their ε add up.",
        "Changed data are released anew, which costs as much again.",
    )
    return Guarantee("of what one node releases at one holder, against everybody", _BOUND, tuple(about), limits)


def _of_both(of_edges: Guarantee, of_nodes: Guarantee, job: JobSettings) -> Guarantee:
    """Where nodes perturb what they have, and a learner's sums over its edges have noise: two ε about two things."""
    learner, others = listed(job.summing), listed(job.releasing)
    about = [(f"{learner}: {name}", what) for name, what in of_edges.about]
    about += [(f"{others}: {name}", what) for name, what in of_nodes.about]
    limits = dict.fromkeys((*of_edges.limits, *of_nodes.limits))
    return Guarantee(f"{of_edges.scope}; and {of_nodes.scope}", of_edges.statement, tuple(about), tuple(limits))
