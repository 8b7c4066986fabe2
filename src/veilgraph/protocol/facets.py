"""A job's facets: the facts that others need of it, whatever its paradigm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from veilgraph.core.types import PartyId
from veilgraph.privacy.plan import NodeRelease
from veilgraph.privacy.settings import LabelReleaseSettings


@dataclass(frozen=True)
class Duties:
    """Which holders do what in a job.

    ``publishing`` publish embeddings; ``scoring`` know how well the model does, and have its predictions; nodes of
    ``releasing`` release perturbed features, which ``learning`` are given; ``summing`` learn of their own edges nothing
    but sums with noise, which they are given once. ``dealing`` knows all masks of a job of which nothing else is
    opened: the server or a holder; None: no party does.
    """

    publishing: tuple[PartyId, ...]
    scoring: tuple[PartyId, ...]
    releasing: tuple[PartyId, ...] = ()
    learning: tuple[PartyId, ...] = ()
    summing: tuple[PartyId, ...] = ()
    dealing: PartyId | None = None

    @property
    def noising(self) -> tuple[PartyId, ...]:
        """Those whose releases, or whose own sums, have noise wherever the job has ``privacy``."""
        return (*self.publishing, *self.summing)


@dataclass(frozen=True)
class Passes:
    """How a training step runs.

    Attributes:
        targets: common nodes in a step, in an order that all parties know; None: all at once.
        exchanges: the setting and the number of the exchanges of a pass, of which each reveals more.
        is_masked: whether single embeddings are hidden from the server, for which there must be more than one.
        evaluates: whether anybody learns how well a step did before the last.
        learns_alone: whether the label holder trains without the others, who so hear of no judgement.
        tolerates_dropouts: whether a sum over the holders may be opened without some of them.
        signed: whether parties sign what they send in training, and keep what an auditor can run it again from.
        lacks: which library a holder needs that is not installed here, and the way out; empty: none.
    """

    targets: int | None
    exchanges: tuple[str, int] | None = None
    is_masked: bool = False
    evaluates: bool = True
    learns_alone: bool = False
    tolerates_dropouts: bool = False
    signed: bool = False
    lacks: str = ""


@dataclass(frozen=True)
class InputRules:
    """What the holders' data may have in a job.

    Attributes:
        weights: whether edges may have weights.
        edge_features: whether edges may have features beside a weight.
        of_nodes: what nodes may have beside labels: ``targets``, numbers to predict; ``membership``, of many graphs.
        is_relational: whether holders' local models tell the relations of their edges apart.
        is_custom: whether the job needs a local model that is given from Python.
        per_node: the holders whose ε is of one node's features: these must be made of that node's own values alone.
        per_edge: the holders whose ε is of one edge: its weight must be made of that edge's own row alone.
        joins_others: whether edges may join a holder's own nodes with other holders'.
        joins_undirected: whether such an edge counts once for a pair of nodes, whichever way it goes.
        standardises: whether each holder standardises its own columns, whatever their range.
        across: the holder that has no nodes, and the edges between those of others; None: there is none.
        degree_rules: holder → a setting and the most edges that a node may have by it, or the graph is refused; where
        that is None, each tells its own, rounded up.
    """

    weights: bool = True
    edge_features: bool = False
    of_nodes: tuple[str, ...] = ()
    is_relational: bool = False
    is_custom: bool = False
    per_node: tuple[PartyId, ...] = ()
    per_edge: tuple[PartyId, ...] = ()
    joins_others: bool = False
    joins_undirected: bool = False
    standardises: bool = False
    across: PartyId | None = None
    degree_rules: Mapping[PartyId, tuple[str, int | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class NoiseFacts:
    """What leaves a holder with noise beside what ``privacy`` says, and how.

    Attributes:
        feature_release: how nodes perturb their features.
        label_release: how nodes perturb their labels.
        shared: the setting that has holders make noise together, and how many that collude it withstands.
        counts_votes: whether an edge is used for its ends' classes alone, counted with noise whose ε is pure.
        sums_records: whether a node's columns are used for sums over training nodes alone, or for one bit of it.
        canaries: of each holder among what is counted or summed so.
        label_splits: the masks whose nodes' labels are perturbed; None: as ``perturbed_splits`` says.
        others_label: the class that all nodes outside these masks perturb in place of a label; None: they perturb none.
    """

    feature_release: NodeRelease | None = None
    label_release: LabelReleaseSettings | None = None
    shared: tuple[str, int] | None = None
    counts_votes: bool = False
    sums_records: bool = False
    canaries: int = 0
    label_splits: tuple[str, ...] | None = None
    others_label: int | None = None

    @property
    def learns_true_labels(self) -> bool:
        """Whether holders learn from their own labels as they are, and perturb those that others are told."""
        return self.label_splits is not None


@dataclass(frozen=True)
class Outcome:
    """Limits of predictions: only of nodes that the label holder names, only classes, only of the data trained on.

    ``keeps_shares``: with ``predicts_named``, a prediction opens none, and single ones are opened later.
    """

    predicts_named: bool = False
    keeps_shares: bool = False
    opens_classes_alone: bool = False
    predicts_as_trained: bool = False
