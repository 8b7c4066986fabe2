"""What all parties of a sealed job know before anything is sent, what each puts in, and what is released with noise.

**Votes.** A job with ``privacy`` releases noisy votes over other holders' edges, and nothing else of these edges.

The label holder's own edges, and everybody's columns, are computed on as they are. Of the other holders' edges nothing
is used but votes. Y are one-hot rows of y_u: u's label where it is a training node, else the class that the model takes
it for, which is trained without these edges. t_u is 1 at training nodes, else 0. A public draw
(``graph.partition.orient_pairs``) has every pair of nodes that holder i records point from one end to the other:
P_i(v, u) = 1 where it points from u to v.

    H = (1 − t)·(Σ_i P_i·Y + P_iᵀ·(t·Y)) + noise, row by row,

summed over all holders i but the label holder, with two-sided geometric noise, P(z) ∝ e^(−ε|z|), on each of the N·C
entries, drawn by the dealer. So a pair of which one end trains counts at the other end, a pair of which none does at
the end that the draw points to, and a pair of which both do nowhere. H is opened to the label holder.

*One edge* is everything that one holder i records between two nodes a and b: added, removed or replaced. Y and t depend
on no edge of holder i, and neither does where the draw points. P_i differs at one entry, say (a, b), from 0 to 1. That
moves row a by (1 − t_a)·y_b and row b by (1 − t_b)·t_a·y_a, of which at most one is not zero, as 1 − t_a and t_a are
not both 1; and y has a single 1. So one entry moves by **1**, whatever the degrees are, and a count with that noise is
e^ε times as likely under one as under the other, at most: ε is pure. What others record of the same two nodes is other
data, theirs, and paid for by them.

The label holder is the only one that anything is opened to, so its own edges need no noise against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal, Self

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.paradigms.sealed.settings import USUAL_DEGREE
from veilgraph.privacy.plan import CountPlan, NodePlan, RecordPlan

MOST_ROWS: Final = 1 << 14
"""Of a step, where a job does not say: more take longer and teach no more."""
MOST_OPENED: Final = 1 << 13
"""Columns, and what is computed of them, are below it in magnitude. Times the root of the largest degree, 2^7, that is
2^20, which the ring holds with the 42 bits of a product."""


@dataclass(frozen=True)
class Block:
    """A holder's consecutive ``rows``, and its numbers of training, validation and named (``asked``) nodes."""

    rows: slice
    training: int
    validation: int
    asked: int = 0

    @property
    def size(self) -> int:
        """Number of rows."""
        return int(self.rows.stop - self.rows.start)


@dataclass(frozen=True)
class Sizes:
    """What all parties know before anything is sent.

    Attributes:
        training: T.
        validation: V that steps are judged by; 0 where none is.
        asked: R, nodes that are predicted, of all who name some; None: all.
        columns: holder → number of its own columns, in the job's order.
        edges: holder → padded number of its directed edges.
        max_degree: bound of every node's degree over all holders, the node itself included; ``max_degree_of``.
        blocks: holder → its own rows, where each has rows of its own, of the same columns; none where all have the same
        rows. A holder of no rows has the edges between those of others.
    """

    nodes: int
    training: int
    classes: int
    columns: Mapping[PartyId, int]
    edges: Mapping[PartyId, int]
    max_degree: int
    validation: int = 0
    asked: int | None = None
    blocks: Mapping[PartyId, Block] = field(default_factory=dict)

    @property
    def most_opened(self) -> int:
        """Bound of opened numbers: ``MOST_OPENED``, halved for each factor of 4 of ``max_degree`` over the usual."""
        return MOST_OPENED >> max(0, math.ceil(math.log(self.max_degree / USUAL_DEGREE, 4)))

    @property
    def width(self) -> int:
        """F, the number of different own columns: all holders' together, or one's where all have the same."""
        return next(iter(self.columns.values())) if self.blocks else sum(self.columns.values())

    @property
    def owners(self) -> Mapping[PartyId, Block]:
        """Holder → its block, for holders with at least one row; empty where all have the same rows."""
        return {holder: block for holder, block in self.blocks.items() if block.size}


_COLUMNS: Final = "columns/"


@dataclass(frozen=True)
class OwnData:
    """What one holder puts into the program.

    ``columns`` are float64 [N, width] of every block made at home; edges are int64 [2, E], their weights float64 [E],
    None where each counts once. A holder with labels has training ``rows``, their labels and weights in the loss,
    ``judged`` validation nodes, and ``asked`` nodes to predict, None: all. Where rows are holders' own, edges end at
    own nodes, and so do ``turned``, outgoing edges reversed; ``coins`` are [N, 2] random numbers for the double entry.
    With noise on records a label holder has ``residuals`` [N, outputs], 0 but at training nodes, and ``told`` [N, 1],
    0 at training nodes, and 1 at those that it learns scores of.
    """

    columns: Mapping[str, Tensor]
    edges: Tensor
    edge_weights: Tensor | None = None
    rows: Tensor | None = None
    labels: Tensor | None = None
    weights: Tensor | None = None
    judged: Tensor | None = None
    judged_labels: Tensor | None = None
    asked: Tensor | None = None
    turned: Tensor | None = None
    coins: Tensor | None = None
    residuals: Tensor | None = None
    told: Tensor | None = None

    def edges_of(self, *, backwards: bool) -> Tensor:
        """Edges int64 [2, E] in their direction, or reversed: ``turned`` if given, else flipped."""
        if not backwards:
            return self.edges
        return self.edges.flip(0) if self.turned is None else self.turned

    def degrees(self, nodes: int, ways: Sequence[bool] = (False,)) -> Tensor:
        """In-degree of every node, weighted, summed over the directions ``ways`` (True: backwards): float64 [N]."""
        targets = (self.edges_of(backwards=way)[1] for way in ways)
        counts = [torch.bincount(each, weights=self.edge_weights, minlength=nodes) for each in targets]
        return torch.stack(counts).sum(0).to(torch.float64)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; that of a column block after ``columns/``."""
        others = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "columns"}
        columns = {f"{_COLUMNS}{block}": part for block, part in self.columns.items()}
        return columns | {name: part for name, part in others.items() if part is not None}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of ``tensors``."""
        columns = {name.removeprefix(_COLUMNS): part for name, part in tensors.items() if name.startswith(_COLUMNS)}
        return cls(columns, **{name: part for name, part in tensors.items() if not name.startswith(_COLUMNS)})

    def digest(self) -> bytes:
        """SHA-256 of all tensors and their shapes."""
        found = sha256()
        others = (getattr(self, each.name) for each in fields(self) if each.name != "columns")
        for part in (*self.columns.values(), *others):
            if part is not None:
                found.update(str(tuple(part.shape)).encode())
                found.update(part.contiguous().numpy().tobytes())
        return found.digest()


OWN: Final = "own"
NEIGHBOURS: Final = "neighbours"
QUANTILES: Final = "quantiles"
UNIT: Final = "unit"
BOOSTING: Final = "boosting"
_HOME: Final = (OWN, NEIGHBOURS, QUANTILES, UNIT, BOOSTING)
THRESHOLDS: Final = 7  # quantiles with which a column's values are compared
MOST_TOLD: Final = 16  # columns of a holder that are compared: those with most different values
NEAR: Final = 3  # hops up to which no row is brought back: so near, all of what a node's neighbours have is wanted
MOST_JUDGED: Final = 2048  # validation nodes that steps are judged by, at most
MOST_RANKED: Final = 64  # of these, those that are ranked against all others, at most


MOST_WHITENED: Final = 256  # columns whose second moments are made; of more, noise on these hides most directions


def hops_of(block: str) -> int:
    """Number of hops in a block's name: 10 of ``pooled.6``; 0 for one that is made at home."""
    return int(block.rpartition(".")[2]) if "." in block else 0


def is_pooled(block: str) -> bool:
    """Whether a block hops over all holders' edges together, as ``pooled.k`` and ``unit.k`` do."""
    return "." in block and not is_apart(block)


def is_apart(block: str) -> bool:
    """Whether a block (``each.k``, ``unit.each.k``) hops over each holder's edges, or each direction, by itself."""
    return "each." in block


def is_near(block: str) -> bool:
    """Whether a block is of at most 3 hops: then it is one hop from the block of one hop less."""
    return 0 < hops_of(block) <= NEAR


@dataclass(frozen=True)
class Trial:
    """What is learned from, and how fast.

    Attributes:
        blocks: of columns, by name: ``own``; ``neighbours``, ``quantiles``, ``unit`` and ``boosting``, made of them at
        home; ``pooled.k`` and ``each.k``, and ``unit.k`` and ``unit.each.k``, what is ``moved`` after k hops over all
        holders' edges together, or over every holder's by themselves.
        deep: how many hidden layers there are beside one another, each of the plan's width.
        learning_rate: of SGD with momentum.
        weight_decay: of L2.
        drops: whether a step leaves out half of the hidden units of each row.
    """

    blocks: tuple[str, ...]
    deep: int
    learning_rate: float
    weight_decay: float
    drops: bool = False


@dataclass(frozen=True)
class Plan:
    """What is computed.

    Attributes:
        trials: made one after the other, each from the beginning.
        standard: whether holders' own columns have units of their own; else their rows have length 1.
        directed: whether edges count in their direction alone.
        hidden: width of the hidden layer.
        steps: of all trials together.
        kept_every: after so many steps, and after the last, weights are judged or kept.
        saved_every: after so many steps a checkpoint is saved.
        weight_decay: of L2; None: what suits the trial and the number of training rows.
        batch: most rows of a step; None: ``MOST_ROWS``.
        weighted: whether rows have weights in the loss.
        ranks: whether a step is judged by pairs of validation nodes ranked rightly, and not by nodes classified so.
        seed: of the initial weights, which are public.
        output: what the label holder learns of a node.
        release: whether holders learn the weights of their own columns.
        votes: ε of the noise on a count of votes over all holders' edges but the label holder's; infinite: there is
        none. None: there are no votes, and hops go over all edges.
        records: noise multiplier of sums over training nodes; 0: sums without noise. None: there are no such sums, and
        a network is trained.
        flips: ε of one bit of every other node, by randomised response; None: scores are opened.
    """

    trials: tuple[Trial, ...]
    standard: bool
    directed: bool
    weighted_edges: bool
    hidden: int
    steps: int
    kept_every: int
    saved_every: int
    momentum: float
    weight_decay: float | None
    batch: int | None
    weighted: bool
    ranks: bool
    seed: int
    output: Literal["classes", "margins"]
    release: bool
    votes: float | None = None
    records: float | None = None
    flips: float | None = None

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Names of all trials' blocks, each once."""
        return tuple(dict.fromkeys(block for trial in self.trials for block in trial.blocks))

    @cached_property
    def home(self) -> tuple[str, ...]:
        """The blocks that a holder makes at home and puts in, side by side: its own columns always."""
        needed = {OWN, *self.blocks, *(block.partition(".")[0] for block in self.blocks)}
        return tuple(block for block in _HOME if block in needed)

    def moved(self, block: str) -> tuple[str, ...]:
        """The blocks whose columns a block with hops propagates: ``unit``, or own columns and any boosting scores."""
        if block.startswith(UNIT):
            return (UNIT,)
        return tuple(each for each in (OWN, BOOSTING) if each in self.home)

    def width_of(self, block: str, columns: int, classes: int) -> int:
        """Number of columns of a block, per relation, made of a holder's ``columns``; ``classes``: 0 without labels."""
        if hops_of(block):
            return sum(self.width_of(each, columns, classes) for each in self.moved(block))
        if block == BOOSTING:
            return max(0, classes - 1)
        if block == NEIGHBOURS:
            return 2 * columns + 1
        return 2 * THRESHOLDS * min(columns, MOST_TOLD) if block == QUANTILES else columns

    @property
    def crosses(self) -> bool:
        """Whether the program needs hidden edges: some block hops over them, or votes are counted."""
        return any(map(hops_of, self.blocks)) or self.votes is not None

    def teleport(self, hops: int) -> float:
        """Teleport probability α of a block of so many hops: 0 up to 3, else as APPNP's (Klicpera et al. 2019).

        It is a power of two, so that what near hops count in far ones has few bits.
        """
        far = 1 / 16 if self.standard else 1 / 8
        return 0.0 if hops <= NEAR else far

    def rows_of_step(self, training: int) -> int:
        """Training rows of a step, of so many in all."""
        return min(self.batch or MOST_ROWS, training)

    def is_of_unit_rows(self, trial: Trial) -> bool:
        """Whether a trial learns from rows of length 1 only."""
        return not self.standard or all(block.startswith(UNIT) for block in trial.blocks)

    @property
    def kept_a_trial(self) -> float:
        """How often weights of a trial are judged or kept, on average."""
        return -(-self.steps // self.kept_every) / len(self.trials)

    def is_kept(self, steps: int) -> bool:
        """Whether weights are judged or kept after so many steps."""
        return steps % self.kept_every == 0 or steps == self.steps

    def is_tested(self, steps: int) -> bool:
        """Whether range tests are made after so many steps: what is saved has the count of all that failed."""
        return self.is_kept(steps) or steps % self.saved_every == 0

    def mean_of(self, members: Sequence[int]) -> Trial:
        """The network that holds the mean of some trials' networks: all their blocks, hidden layers side by side."""
        trials = [self.trials[member] for member in members]
        blocks = tuple(block for block in self.blocks if any(block in trial.blocks for trial in trials))
        return trials[0] if len(trials) == 1 else replace(trials[-1], blocks=blocks, deep=sum(t.deep for t in trials))

    def trial_of(self, step: int) -> int:
        """Index of the trial of a step; both count from 0."""
        return min(step // (self.steps // len(self.trials)), len(self.trials) - 1)

    def place_of(self, step: int) -> int:
        """Number of steps of the same trial before a step, which counts from 0 over all trials."""
        return step - self.trial_of(step) * (self.steps // len(self.trials))


@dataclass(frozen=True)
class Context:
    """Public sizes and plan of a program, and the data here: a holder's own, none at the dealer, all in the twin."""

    sizes: Sizes
    plan: Plan
    label_party: PartyId
    data: Mapping[PartyId, OwnData]

    @property
    def learners(self) -> Mapping[PartyId, Block]:
        """Holder that may have labels and learns predictions → rows: the label holder of all, or each of its own."""
        sizes = self.sizes
        rows = slice(0, sizes.nodes)
        return sizes.owners or {self.label_party: Block(rows, sizes.training, sizes.validation, sizes.asked or 0)}

    @property
    def abreast(self) -> Sequence[PartyId]:
        """Holders whose columns stand side by side: all, or the first one where all have the same columns."""
        return tuple(self.sizes.owners)[:1] or tuple(self.sizes.columns)

    def width_of(self, holder: PartyId, *blocks: str) -> int:
        """Number of columns of these blocks, per relation, made of a holder's."""
        classes = self.sizes.classes if holder in self.learners else 0
        return sum(self.plan.width_of(block, self.sizes.columns[holder], classes) for block in blocks)

    def columns_of(self, holder: PartyId) -> Tensor | None:
        """A holder's columns of all blocks made at home, side by side: float64 [N, ·]; None where they are not here."""
        data = self.data.get(holder)
        if data is None:
            return None
        return torch.cat([data.columns[block] for block in self.plan.home if block in data.columns], 1)

    def of(self, holder: PartyId, what: str) -> Tensor | None:
        """Attribute ``what`` of a holder's ``OwnData``; None where that is not here."""
        data = self.data.get(holder)
        found: Tensor | None = None if data is None else getattr(data, what)
        return found


if TYPE_CHECKING:
    from veilgraph.paradigms.sealed.settings import SealedJob


def release_plan(job: SealedJob, party: PartyId, nodes: int | None = None) -> CountPlan | RecordPlan | None:
    """Budget plan of a holder's noisy votes or sums, of 0 releases for the label holder; None without privacy."""
    if job.privacy is None or party not in job.data.names:
        return None
    pays = party != job.data.label_party
    if job.records is None:
        return CountPlan(party, job.privacy, int(pays), nodes)
    return (RecordPlan if job.bits is None else NodePlan)(party, job.privacy, int(pays), nodes)


def epsilon_of(job: SealedJob) -> float | None:
    """ε of the noise on votes; infinite: votes without noise; None: no votes."""
    plans = (release_plan(job, party) for party in job.duties.publishing if party != job.data.label_party)
    return next((plan.epsilon for plan in plans if isinstance(plan, CountPlan)), None)


def _record_plan(job: SealedJob, nodes: int | None) -> RecordPlan | None:
    plans = (release_plan(job, party, nodes) for party in job.duties.publishing if party != job.data.label_party)
    return next((plan for plan in plans if isinstance(plan, RecordPlan)), None)


def record_noise_of(job: SealedJob, nodes: int | None) -> float | None:
    """Noise multiplier of sums over training nodes, of N common ``nodes``; None: the job has no such sums."""
    plan = _record_plan(job, nodes)
    return None if plan is None else plan.multiplier


def flips_of(job: SealedJob, nodes: int | None) -> float | None:
    """ε of the randomised response on one bit of a node; None: the job opens no bits."""
    plan = _record_plan(job, nodes)
    return plan.flip_epsilon if isinstance(plan, NodePlan) else None
