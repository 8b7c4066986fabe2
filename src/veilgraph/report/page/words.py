"""The job in words: who takes part with what, how the network is computed, and what that shows to whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from veilgraph.core.config import JobSettings
from veilgraph.core.types import SERVER
from veilgraph.report.page.found import Found, HolderFacts
from veilgraph.report.page.text import counted, listed

_MODELS: Final = MappingProxyType(
    {
        "sage-mean": "the mean of its neighbours (GraphSAGE)",
        "sage-lstm": "its neighbours in a random order (GraphSAGE, LSTM)",
        "sage-pool": "the maximum over its neighbours (GraphSAGE)",
        "gcn": "its neighbours, weighted by degree (GCN)",
        "gat": "its neighbours, weighted by attention (GAT)",
        "gin": "the sum of its neighbours (GIN)",
        "appnp": "its neighbours by personalised propagation (APPNP)",
        "custom": "its neighbours by a local model of the user's own",
    }
)
_TRUST: Final = (
    "This rests on all parties following the protocol, and on the server colluding with no holder: together they could "
    "undo masks and shares."
)


@dataclass(frozen=True)
class Contribution:
    """A row of the table of parties; cells are empty where something is not known here."""

    party: str
    role: str
    nodes: str
    columns: str
    edges: str
    labels: str


@dataclass(frozen=True)
class Job:
    """The section: sentences, the parties' table, and the job file as it is."""

    sentences: tuple[str, ...]
    contributions: tuple[Contribution, ...]
    source: str


def job(found: Found) -> Job:
    """The job of a run, in words."""
    settings = found.settings
    words = {"vertical": _vertical, "horizontal": _horizontal, "local": _local}[settings.paradigm]
    contributions = tuple(_contribution(found, holder) for holder in settings.data.names)
    server = Contribution(SERVER, _server_role(settings), "none", "none", "none", "none")
    source = (found.path / "job.yaml").read_text(encoding="utf-8", errors="replace")
    return Job((*words(settings), _schedule(settings)), (*contributions, server), source)


def _contribution(found: Found, holder: str) -> Contribution:
    facts, job_ = found.holders.get(holder), found.settings
    roles = ["holder"]
    if holder == job_.data.label_party:
        roles = ["reports the scores"] if job_.paradigm == "horizontal" else ["label holder"]
    if job_.paradigm == "local":
        roles = ["learns; knows the graph"] if holder in job_.learning else ["its nodes perturb their values"]
    if facts is None:
        size = found.table_sizes.get(holder)
        return Contribution(holder, ", ".join(roles), "" if size is None else f"{size:,}", "", "", "")
    nodes = f"{facts.nodes:,}"
    if job_.paradigm != "horizontal" and facts.common != facts.nodes:
        nodes += f", {facts.common:,} common"
    return Contribution(
        holder,
        ", ".join(roles),
        nodes,
        f"{facts.columns:,}",
        f"{facts.edges:,}" if facts.edges else "none",
        _labels(facts),
    )


def _labels(facts: HolderFacts) -> str:
    if facts.splits is None:
        return "none"
    train, val, test = facts.splits
    classes = "" if facts.classes is None else f"{counted(facts.classes, 'class', 'classes')}: "
    return f"{classes}{train:,} training, {val:,} validation, {test:,} test"


def _server_role(settings: JobSettings) -> str:
    if settings.paradigm == "local":
        return "relays; computes nothing"
    if settings.privacy is not None and settings.privacy.once:
        return "joins the releases; relays"
    return "combines embeddings; has no data"


def _vertical(settings: JobSettings) -> list[str]:
    holders, model = settings.data.names, settings.model
    once = settings.privacy is not None and settings.privacy.once
    sentences = [
        f"{listed(holders)} have different columns, and edges of their own, of the same nodes. "
        f"{settings.data.label_party} alone has labels.",
        _first_layer(settings),
        f"Over its own edges each holder then joins what a node has with {_MODELS[model.local.model]}, "
        f"{counted(model.local.hops, 'hop')} far. No edge is sent to anybody."
        if model.local.hops
        else "No edges are used.",
    ]
    if once:
        sentences.append(
            f"{listed(settings.publishing)} then publish the result a single time, with noise; "
            f"{settings.data.label_party} trains on that and on its own data, alone."
        )
    sentences.append(_combined(settings))
    if model.rounds > 1:
        sentences.append(
            f"That happens in {model.rounds} rounds: after all but the last, every holder is sent the combined "
            "embeddings, from which others' edges can be inferred."
        )
    if not once:
        sentences.append(
            f"The server has {counted(model.server.layers, 'further layer')}; {settings.data.label_party} gets the "
            "output, computes the loss from its labels, and gradients return the same way."
        )
    return [*sentences, *_batches(settings), _noise(settings), _TRUST]


def _batches(settings: JobSettings) -> list[str]:
    size, every, fanout = settings.train.batch_size, settings.train.refresh_every, settings.model.local.fanout
    if size is None:
        return []
    drawn = "all neighbours" if fanout is None else f"at most {counted(fanout, 'neighbour')} of a node, drawn anew"
    renewed = "once an epoch" if every is None else f"every {counted(every, 'step')}"
    return [
        f"A step is about {size:,} nodes in an order that all parties know; each holder takes {drawn}, and tells "
        f"nobody which. The first layer is computed for all nodes, and changes, {renewed}."
    ]


def _first_layer(settings: JobSettings) -> str:
    two = len(settings.data.names) == 2
    subtract = " With two holders each can subtract its own part, and then has the other's exactly." if two else ""
    sentences: Mapping[str, str] = {
        "collaborative": "The first layer is computed on secret shares: no party ever sees another's features, and its "
        "weights exist nowhere in one place. Every holder learns the result for every common node, h⁰, and anew "
        "whenever they change.",
        "secure-sum": "In the first layer each holder multiplies its columns by weights of its own, and only the sum "
        f"over the holders, h⁰, is opened, to every holder.{subtract}",
        "individual": "Each holder computes its first layer from its own columns alone, and shows nothing of it.",
        "perturbed": "Every node perturbs its own features once before anybody sees them; the first layer is computed "
        "from such values alone.",
    }
    return sentences[settings.model.initial.method]


def _combined(settings: JobSettings) -> str:
    combine = settings.model.combine
    how = {
        "mean": "takes the mean of what the holders publish",
        "concat": "puts what the holders publish side by side",
        "regression": "takes a weighted sum of what the holders publish",
        "degree-weighted": "takes the mean of what the holders publish, weighted by a node's number of edges",
    }[combine.strategy]
    if len(settings.publishing) == 1:
        return f"The server passes on what {settings.publishing[0]} published: there is nothing to combine it with."
    if settings.is_masked:
        return (
            f"The server {how}. That is masked: the server opens the sum and never sees the embeddings of one holder."
        )
    return f"The server {how}. That is not masked: the server sees every holder's embedding of every node by itself."


def _noise(settings: JobSettings) -> str:
    if settings.feature_release is not None:
        return "What nodes release of themselves is bounded by an ε; edges and labels are not noised."
    if settings.privacy is None:
        return "There is no differential privacy: nothing is noised."
    if settings.privacy.noise_multiplier == 0:
        return "What holders publish is clipped, and not noised: there is no differential privacy."
    return "Everything that a holder publishes to the server is clipped and noised first, and paid for in its ledger."


def _horizontal(settings: JobSettings) -> list[str]:
    split, holders = settings.horizontal, settings.data.names
    raw = (
        " In the first layer no weights are between the features and the server: it gets raw features, joined with "
        "neighbours'."
        if split.message == "none"
        else ""
    )
    server = (
        "The server learns that maximum alone: neither the other values nor whose it is."
        if split.combine == "secure-max"
        else "The server sees every holder's embeddings of its nodes by themselves."
    )
    sums = (
        "With two holders each can subtract its own from a sum, and has the other's exactly."
        if len(holders) == 2
        else "Masks hide the single summands."
    )
    return [
        f"{listed(holders)} have the same columns of different nodes, some of them perhaps the same, with edges and "
        "labels of their own.",
        f"The network has {counted(split.layers, 'layer')}. In each, every holder takes the {split.aggregate} over a "
        f"node's neighbours at it, and the server the {split.aggregate} over the holders. {server}{raw}",
        "The result is that of one network on the combined graph. Every holder gets it for its own nodes.",
        "The server knows nodes by hashes alone, under a key that it lacks; it sees how many each holder has and which "
        "several have.",
        f"Holders share their weights, and add up gradients, losses and counts among themselves. {sums}",
        "There is no differential privacy: nothing is noised.",
        _TRUST,
    ]


def _local(settings: JobSettings) -> list[str]:
    release, labels = settings.local.features, settings.local.labels
    if release is None:
        return []
    learner, others = settings.data.label_party, listed(settings.releasing)
    sentences = [
        f"{learner} knows the graph, and learns. At {others} every node perturbs its own features a single time, by "
        f"{release.mechanism} with ε = {release.epsilon:g}, before anybody sees them.",
        f"{learner} averages the noise out over neighbours, {counted(settings.local.network.hops, 'hop')} far, and "
        "trains a network of two layers alone.",
    ]
    if labels is not None:
        sentences.append(
            f"Labels are {labels.holder}'s: each node perturbs its own by randomised response, with ε = "
            f"{labels.epsilon:g}; which nodes have one is in the clear."
        )
    else:
        sentences.append(f"{learner} has the labels itself and shows them to nobody.")
    return [*sentences, "What nodes release needs no trust in anybody: ε bounds what all parties together can infer."]


def _schedule(settings: JobSettings) -> str:
    train = settings.train
    chosen = {
        "accuracy": "the best accuracy",
        "auc": "the best AUC",
        "f1": "the best macro F1",
        "loss": "the lowest loss",
    }.get(train.select_by)
    epochs = counted(train.epochs, "epoch")
    if chosen is None:
        return f"Training lasts {epochs}; the last model is kept, and no other party is told how it did."
    stop = (
        ""
        if train.patience is None
        else f"; it ends after {counted(train.patience, 'evaluation')} without a better one"
    )
    return f"Training lasts at most {epochs}{stop}. The model with {chosen} on the validation nodes is kept."
