"""A horizontal job (SAPGNN): holders of the same columns and perhaps common nodes; they and a server share layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from veilgraph.core.settings import Settings
from veilgraph.graph.settings import OF_WORDS
from veilgraph.nn.layers import Activation, Probability
from veilgraph.paradigms.horizontal.tally import VALUE_MEASURES, LearntSettings
from veilgraph.protocol.facets import Duties, InputRules, Passes
from veilgraph.protocol.figures import CLASS_MEASURES, Measures, selecting
from veilgraph.protocol.job import JobSettings, job_of, require
from veilgraph.protocol.preset import Choice, JobContent


def same_columns(said: JobContent, *, classes: bool) -> Iterator[Choice]:
    """Preset choices that suit the data of holders of the same columns; ``classes``: the task predicts classes."""
    if said.name("data.dataset") in OF_WORDS:
        yield Choice("data.feature_scaling", "row", "words of one unit, few of them at a node")
    else:
        yield Choice("data.feature_scaling", "standard", "columns have units of their own")
    if not classes:
        return
    yield Choice("train.select_by", "auc", "a class may be rare, and accuracy says little of it then")
    if said.get("label_privacy") is None:  # the classes' shares are private
        yield Choice("train.class_weights", "balanced", "a class may be rare, and counts as much as another then")


_FEW: Final = "few nodes have labels"

PROPOSITION: Final = (
    "with max pooling every element of φ(h, m) must not fall where an element of m rises (SAPGNN, Proposition in "
    "section 4.2.2, eqs. 12-13), with min pooling likewise, or the holders' pooled results are not those of the "
    "combined graph"
)
"""Why a local update has to be monotone."""

NOT_MONOTONE: Final = frozenset({"difference"})  # local updates that max and min pooling refuse; mean and sum do not


class GlobalUpdateSettings(Settings):
    """φ^(l) at the server (SAPGNN eq. 8), after every layer but the last, in this order."""

    linear: bool = True
    """linear map to width dim, without bias under batch norm"""
    batch_norm: bool = False
    """over all nodes; running statistics when evaluating"""
    activation: Activation = "relu"
    """of global embeddings"""
    dropout: Probability = 0.5
    """of global embeddings"""


class HorizontalSettings(Settings):
    """The split network of SAPGNN.

    A layer is h ← W·h at the holder unless ``message`` is none, pooling over the holder's neighbours, the local
    update φ(h, m), pooling over the holders, and the global update at the server. The last layer has no global update:
    the predict layer ψ (eq. 14), a linear map at every holder, follows, so that the server sees no class scores.

    With ``message: none`` and ``update: sum`` that is the network of eq. 23, the last W being ψ's.
    """

    layers: int = Field(2, ge=1, le=16)
    """L; in a pass the server sees L embeddings of each holder"""
    dim: int = Field(64, ge=1, le=4096)
    """d, width of linear messages, gates and global embeddings"""
    message: Literal["linear", "full", "none"] = "linear"
    """ρ (eq. 4), times the edge's weight. linear: W·h_u, and h_v becomes W·h_v, the server not knowing W; full: W·h_u +
    U·h_v + V·h_e, h_e the edge's features; none: h_u, so the server receives pooled raw features
    """
    aggregate: Literal["max", "min", "mean", "sum"] = "max"
    """over neighbours, then holders; max, min: of messages and zero, the value without neighbours; mean, sum: need
    edges counted once
    """
    update: Literal["sum", "concat", "gated", "difference"] = "sum"
    """φ (eq. 6): h + m; h beside m; ReLU(MLP(h))·m; h − m (mean, sum only)"""
    edges: Literal["may-overlap", "disjoint", "deduplicate"] = "may-overlap"
    """an edge may be at several holders; holders promise that it is not; the first holder uses it"""
    combine: Literal["max", "secure-max"] = "max"
    """max: the server sees every holder's embeddings; secure-max: the maximum only, not whose it is"""
    server: GlobalUpdateSettings = GlobalUpdateSettings()

    @property
    def pools(self) -> bool:
        """Whether the aggregate is max or min, which do not mind an edge that several holders have."""
        return self.aggregate in ("max", "min")

    @model_validator(mode="after")
    def _check_model(self) -> Self:
        if self.pools and self.update in NOT_MONOTONE:
            raise ValueError(
                f"update={self.update!r} with aggregate={self.aggregate!r}: {PROPOSITION}; choose sum, concat or gated"
            )
        if not self.pools:
            why = "it counts an edge once for every holder that has it"
            require(f"aggregate={self.aggregate}", ("edges", self.edges, ["disjoint", "deduplicate"], why))
        if self.combine == "secure-max":
            require("combine=secure-max", ("aggregate", self.aggregate, "max", "it computes a maximum"))
        if self.message == "none":
            why = "embeddings would be as wide as the features, without weights of their own"
            require("message=none", ("server.linear", self.server.linear, True, why))
        return self


class HorizontalJobSettings(Settings):
    """What is a horizontal job's alone, beside its network."""

    task: LearntSettings = LearntSettings()
    """what is learnt"""


class HorizontalJob(JobSettings):
    """Holders have the same columns of different nodes, with edges and labels of their own."""

    paradigm: Literal["horizontal"] = "horizontal"
    horizontal: HorizontalJobSettings = HorizontalJobSettings()
    """what the holders learn"""
    model: HorizontalSettings = HorizontalSettings()
    """the network"""

    @model_validator(mode="before")
    @classmethod
    def _select(cls, data: object) -> object:
        """Give a job of task ``values`` without ``train.select_by`` the first of ``VALUE_MEASURES`` to select by."""
        is_values = isinstance(data, Mapping) and JobContent(data).get("horizontal.task.name") == "values"
        return selecting(data, VALUE_MEASURES) if is_values and isinstance(data, Mapping) else data

    @classmethod
    @override
    def choices(cls, said: JobContent) -> Iterable[Choice]:
        """Preset choices that suit a horizontal job's task and data."""
        yield Choice("model.server.batch_norm", True, "maxima over neighbours grow with degrees and layers")
        classes = said.get("horizontal.task.name", "classes") == "classes"
        yield from same_columns(said, classes=classes)
        if classes and said.name("data.dataset") not in OF_WORDS:
            yield Choice(
                "model.update", "concat", "a node's own columns and its neighbours' maxima tell different things"
            )
            yield Choice("model.server.dropout", 0.7, _FEW)
            yield Choice("train.learning_rate", 3e-3, "larger steps end at worse weights")
            if said.get("label_privacy") is None:  # perturbed labels tell less than that decay forgets
                yield Choice("train.weight_decay", 1e-2, _FEW)

    def _check_unused(self) -> None:
        super()._check_unused()
        if self.horizontal.task.is_values:
            weights = ("train.class_weights", self.train.class_weights, "none", "numbers have no classes to weigh")
            require("horizontal.task.name=values", weights)

    def _check_parts(self) -> None:
        """Allow any ``data.partition``."""

    def _check_label_privacy(self, said: str) -> None:
        self._check_division(said)
        if self.horizontal.task.is_values:
            epsilon, why = self.label_privacy and self.label_privacy.epsilon, "the class of a node is perturbed"
            require("horizontal.task.name=values", ("label_privacy.epsilon", epsilon, None, why))

    @property
    def measures(self) -> Measures:
        return (VALUE_MEASURES if self.horizontal.task.is_values else CLASS_MEASURES).led_by(self.train.select_by)

    @property
    def is_aligned(self) -> bool:
        return False

    @property
    def duties(self) -> Duties:
        return Duties(publishing=self.data.names, scoring=self.data.names)

    @property
    def passes(self) -> Passes:
        return Passes(targets=self.train.batch_size, exchanges=("model.layers", self.model.layers))

    @property
    def inputs(self) -> InputRules:
        of_nodes = ("targets",) if self.horizontal.task.is_values else ()
        return InputRules(edge_features=self.model.message == "full", of_nodes=of_nodes)


def horizontal(job: JobSettings) -> HorizontalJob:
    """Return ``job`` typed as a horizontal job; ``ConfigError`` where it is of another paradigm."""
    return job_of(HorizontalJob, job)
