"""A vertical job in words."""

from __future__ import annotations

from collections.abc import Mapping

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.vertical.settings import VerticalJob


def describe(settings: VerticalJob) -> list[str]:
    """A job in sentences."""
    holders, model = settings.data.names, settings.model
    once = settings.privacy is not None and settings.privacy.once
    hops = None if settings.privacy is None else settings.privacy.aggregation
    sentences = [
        f"{listed(holders)} have different columns, and edges of their own, of the same nodes. "
        f"{settings.data.label_party} alone has labels.",
        _first_layer(settings),
        f"Over its own edges each holder then joins what a node has with {model.local.kind.words}, "
        f"{counted(model.local.hops, 'hop')} far. No edge is sent to anybody."
        if model.local.hops
        else "No edges are used.",
    ]
    if hops is not None:
        sentences.append(
            f"{listed(settings.publishing)} instead sum up what each node's neighbours have, scaled to length 1, "
            f"{counted(hops.hops, 'hop')} far, with noise in every hop, and publish the sums a single time"
            f"{_own_rows(settings)}; {settings.data.label_party} trains on them and on its own data, alone."
        )
    elif once:
        sentences.append(
            f"{listed(settings.publishing)} then publish the result a single time, with noise; "
            f"{settings.data.label_party} trains on that and on its own data, alone."
        )
    sentences.append(_combined(settings))
    if model.rounds > 1:
        sentences.append(
            f"That happens in {model.rounds} rounds: after all but the last, every holder is sent what was combined."
        )
    if not once:
        sentences.append(
            f"The server has {counted(model.server.layers, 'further layer')}; {settings.data.label_party} gets the "
            f"output, computes the loss from {_labels(settings)}, and gradients return the same way."
        )
    return [*sentences, *_batches(settings), _noise(settings), TRUST]


def _own_rows(settings: VerticalJob) -> str:
    if not settings.gives_columns:
        return ""
    return f", and give {settings.data.label_party} the common nodes' columns as they are"


def withstood(settings: VerticalJob) -> str:
    """Against whom the ε of noise that is made jointly holds."""
    joint = None if settings.privacy is None else settings.privacy.joint_noise
    most, count = 0 if joint is None else joint.colluding, len(settings.publishing)
    if not settings.learns_alone:
        return f"the server and at most {most} of the other {count - 1} holders, all together"
    helped = (
        f"with at most {most} of the other {count - 1} that publish, all together"
        if most
        else f"as long as none of the {count} that publish helps them"
    )
    return f"the server and {settings.data.label_party}, {helped}"


def _batches(settings: VerticalJob) -> list[str]:
    size, every, fanout = settings.train.batch_size, settings.train.refresh_every, settings.model.local.fanout
    if size is None:
        return []
    drawn = "all neighbours" if fanout is None else f"at most {counted(fanout, 'neighbour')} of a node, drawn anew"
    renewed = "once an epoch" if every is None else f"every {counted(every, 'step')}"
    return [
        f"A step is about {size:,} nodes in an order that all parties know; each holder takes {drawn}, and tells "
        f"nobody which. The first layer is computed for all nodes, and changes, {renewed}."
    ]


def _first_layer(settings: VerticalJob) -> str:
    sentences: Mapping[str, str] = {
        "collaborative": "The first layer is computed on secret shares: no party ever sees another's features, and its "
        "weights exist nowhere in one place. Every holder learns the result for every common node, h⁰, and anew "
        "whenever they change.",
        "secure-sum": "In the first layer each holder multiplies its columns by weights of its own, and only the sum "
        "over the holders, h⁰, is opened, to every holder.",
        "individual": "Each holder computes its first layer from its own columns alone, and shows nothing of it.",
        "perturbed": "Every node perturbs its own features once before anybody sees them; the first layer is computed "
        "from such values alone.",
    }
    return sentences[settings.model.initial.method]


def _combined(settings: VerticalJob) -> str:
    how = settings.model.combine.kind.words
    if len(settings.publishing) == 1:
        return f"The server passes on what {settings.publishing[0]} published: there is nothing to combine it with."
    return (
        f"The server {how}. That is {'masked: the server opens the sum alone' if settings.is_masked else 'not masked'}."
    )


def _labels(settings: VerticalJob) -> str:
    private = settings.label_privacy
    if private is None:
        return "its labels"
    return f"its labels under randomised response (ε {private.epsilon:g} of one label, once, before training)"


def _noise(settings: VerticalJob) -> str:
    if settings.feature_release is not None:
        return "What nodes release of themselves is bounded by an ε; edges and labels are not noised."
    if settings.label_privacy is not None:
        return "What is told of a label is bounded by an ε; features and edges are not noised."
    if settings.privacy is None:
        return "There is no differential privacy: nothing is noised."
    if settings.privacy.noise_multiplier == 0:
        return "What holders publish is clipped, and not noised: there is no differential privacy."
    if settings.privacy.joint_noise is not None:
        return (
            "What a holder publishes is clipped, noised with a share of the noise, paid for in its ledger and masked; "
            f"ε holds against {withstood(settings)}."
        )
    return "Everything that a holder publishes to the server is clipped and noised first, and paid for in its ledger."
