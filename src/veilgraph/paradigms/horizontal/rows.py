"""What a horizontal job sends, and reveals."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from veilgraph.core.types import Kind
from veilgraph.paradigms.horizontal.network import first_is_fixed, learning_layers
from veilgraph.paradigms.horizontal.settings import HorizontalJob
from veilgraph.protocol import messages as table
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import Condition, Exposed, MessageSpec, Revelation, Route, WireFormat

_Row = MessageSpec[HorizontalJob]
_Told = Revelation[HorizontalJob]
_Fact = Condition[HorizontalJob]

# What is revealed


def _aggregate_setting(job: HorizontalJob) -> str:
    return f"model.aggregate={job.model.aggregate}"


def _paradigm_setting(_: HorizontalJob) -> str:
    return "paradigm=horizontal"


def _values_setting(job: HorizontalJob) -> str:
    """The setting that causes revelations of regression; empty in a job of classes."""
    return "horizontal.task.name=values" if job.horizontal.task.is_values else ""


def _classes_setting(job: HorizontalJob) -> str:
    """The setting that causes revelations of classification; empty in a job of numbers."""
    return "" if job.horizontal.task.is_values else "paradigm=horizontal"


def _standard_setting(job: JobSettings) -> str:
    """The setting that causes column statistics to be revealed; empty where none are."""
    scaled = job.data.from_tables and job.data.feature_scaling == "standard"
    return "data.feature_scaling=standard" if scaled else ""


# fmt: off
COLUMNS: Final = Revelation[JobSettings](
    "column-statistics", "Every holder learns all tables' number of rows and every feature column's mean and "
    "variance, with two holders the other's exactly; two jobs differ by the row that was added, removed or changed.",
    _standard_setting,
    jobs="tables with `data.feature_scaling: standard`, or a party file with `missing: mean`")
NODES: Final = _Told(
    "node-lists", "The server learns which nodes several holders know, by hashes under a key that it lacks.",
    _paradigm_setting)
EDGES: Final = _Told(
    "edge-lists", "The server learns which edges several holders have, by hashes under a key that it lacks, and a "
    "holder which of its edges an earlier one has.", lambda _: "model.edges=deduplicate")
MAXIMA: Final = _Told(
    "embedding-maxima", "The server sees the element-wise maximum or minimum of all holders' embeddings of every "
    "node, which depend on all features and edges, in every layer, and its gradient.", _aggregate_setting)
SUMS: Final = _Told(*table.EMBEDDING_SUMS, _aggregate_setting)
SINGLE: Final = _Told(*table.SINGLE_EMBEDDINGS, lambda job: f"model.combine={job.model.combine}")
RAW: Final = _Told(
    "raw-features", "The server sees raw features in the first layer: joined with neighbours' or, with update=concat "
    "and with aggregates mean and sum, by themselves.", lambda _: "model.message=none")
POOLED: Final = _Told(*table.POOLED_DEGREES, _aggregate_setting)
SINGLE_POOLED: Final = _Told(*table.SINGLE_DEGREES, _aggregate_setting)
GLOBAL: Final = _Told(
    "global-embeddings", "Every holder sees its nodes' global embeddings, the last being the aggregate itself, and "
    "where its own part prevails; others' features and edges there can be inferred.", _paradigm_setting)
TRAINED: Final = _Told(*table.TRAINING_ROWS, _classes_setting)
TRAINED_NODES: Final = _Told(*table.TRAINING_NODES, part_of="training-rows")
TRAINED_TARGETS: Final = _Told(
    "training-targets", "From gradients the server and every holder can infer which nodes are trained on and their "
    "numbers to predict, the server up to unit and zero point.", _values_setting)
SPREAD: Final = _Told(
    "edge-gradients", "Gradients of earlier layers tell of edges around the training nodes: the server sees each "
    "holder's, every holder their sum at its nodes.",
    lambda job: f"model.layers={job.model.layers}")
WEIGHTS: Final = _Told(
    "weight-gradients", "Every holder sees, in every step, the shared weights' gradients and the loss, summed over "
    "the holders.", _paradigm_setting)
TALLIES: Final = _Told(
    "label-tallies", "Every holder learns the number of training nodes, with train.class_weights=balanced of each "
    "class, and at every evaluation the holders' summed losses, confusion matrices of each split and score histograms.",
    _classes_setting)
VALUE_TALLIES: Final = _Told(
    "value-tallies", "Every holder learns the number of training nodes and, at every evaluation of each split, the "
    "number and the sums of targets, of errors and of both squared.", _values_setting)
TARGETS: Final = _Told(*table.TARGET_SUMS, lambda job: f"{_values_setting(job)} without low and high")
SUMMANDS: Final = _Told(
    "single-summands", "Each of two holders can subtract its own part from the sums of weight gradients, losses, "
    "counts and targets, and has the other's exactly.", lambda _: "paradigm=horizontal, 2 holders")

# In which jobs

SECURE_MAX: Final = _Fact("`combine: secure-max`", lambda job: job.model.combine == "secure-max")
CLEAR: Final = SECURE_MAX.otherwise("`combine: max`")
POOLING: Final = _Fact("`aggregate: max/min`", lambda job: job.model.pools)
ADDED: Final = POOLING.otherwise("`aggregate: mean/sum`")
MEAN: Final = _Fact("`aggregate: mean`", lambda job: job.model.aggregate == "mean")
DEDUPLICATED: Final = _Fact("`edges: deduplicate`", lambda job: job.model.edges == "deduplicate")
NO_MESSAGE: Final = _Fact("`message: none`", lambda job: job.model.message == "none")
FIXED: Final = _Fact("fixed first layer", lambda job: first_is_fixed(job.model))
MORE_LAYERS: Final = _Fact("`layers` > 1", lambda job: job.model.layers > 1)
PERTURBED: Final = _Fact("`label_privacy`", lambda job: job.label_privacy is not None)
TRUE: Final = PERTURBED.otherwise("no `label_privacy`")
VALUES: Final = _Fact("`horizontal.task: values`", lambda job: job.horizontal.task.is_values)
CLASSES: Final = VALUES.otherwise("`horizontal.task: classes`")
SUMS_BEFORE: Final = _Fact(
    "`horizontal.task: values` without bounds", lambda job: bool(job.horizontal.task.sums_before))
BALANCED: Final = _Fact("`class_weights: balanced`", lambda job: job.train.class_weights == "balanced")
MORE_LEARNING: Final = _Fact("more than one layer with weights", lambda job: len(learning_layers(job.model)) > 1)

# fmt: on
# What is sent

_HASHED: Final = (
    "The server lacks the hashes' key, so it can neither read nor test an entry; it learns how many there are and "
    "which several holders have."
)
_SUMMED: Final = "Not protected: the server has the sender's part by itself, of every node that the sender knows."
_RAW: Final = "No weight of the holders is between the features and the server."
_FIXED: Final = "It has no weights and is the same in every pass."
_LABELS: Final = (
    "Not protected: the receiver, which has the output's weights, can infer labels that others have of its nodes."
)
_ERRORS: Final = (
    "Not protected: a training node's row is its error times weights that all rows share, so it tells its target."
)
_OF_PERTURBED: Final = "Computed from labels that were perturbed once, and paid for in their holder's ledger."
_BITS: Final = "Uniform for the receiver; the server, which dealt the masks, must not get it."
_EMBEDDINGS: Final = (WireFormat("s, l", "real [N_p, s_l]", "every pass; fixed first layer: s = 0"),)
_RETURNED: Final = (WireFormat("s, l", "real [N_p, s_l]", "training, but of a fixed first layer"),)
_ALONE: Final = (SUMMANDS,)
_LAYERS: Final = Exposed("embedding", "{sender}'s embedding of layer {round}")
_GRADIENTS: Final = Exposed("gradients", "{sender}'s gradients of the global embedding of layer {round}")


def _grad_rows(
    ends: Route[Any], what: str, why: str, *when: _Fact, forms: tuple[WireFormat, ...], exposed: Exposed | None = None
) -> list[_Row]:
    """Build a gradient's message rows: of true labels, of numbers, of perturbed labels, and of its non-zero rows."""
    of = partial(_Row, Kind.GRADIENT, ends)
    whole, noised = (
        partial(of, exposed=exposed, forms=forms),
        f"{what.replace(', in the clear', '')}, of perturbed labels",
    )
    return [
        whole(what, "none", why, (TRAINED,), (CLASSES, TRUE, *when)),
        whole(f"{what}, of numbers to predict", "none", _ERRORS, (TRAINED_TARGETS,), (VALUES, *when)),
        whole(noised, "noise", _OF_PERTURBED, (TRAINED,), (PERTURBED, *when)),
        of("which of its rows are not zero", "none", table.TRAINED_ON, (TRAINED_NODES,), (PERTURBED, *when)),
    ]


# One row, few lines: a table is read across.
# fmt: off
COLUMN_ROWS: Final[tuple[MessageSpec[JobSettings], ...]] = (
    MessageSpec(Kind.COLUMN_HASHES, table.TO_HOLDER,
        "hashes of feature columns with their settings, of classes, and of the split's key", "none",
        "The receiver, which should have the same, reads neither name nor key, but can test one that it guesses.",
        forms=(WireFormat("0, 0", "uint8 [3 + columns, 16]", "collection"),)),
    *table.summed_rows(Kind.COLUMN_SUMS, "masked number of rows, sums of columns and of their squares", (COLUMNS,), (),
        forms=(WireFormat("0 … 2, 0", "int64 [numbers, 10]", "collection with sums"),)),
)
"""What holders of the same columns tell each other of these, before all else."""
ROWS: Final[tuple[_Row, ...]] = (
    *table.COMMON_ROWS,
    table.judgement(table.LABELLED_TO_SERVER),
    MessageSpec(Kind.KEY, table.TO_HOLDER, "a fresh public key", "random",
        "Made of random numbers; its secret half stays at the sender.",
        forms=(WireFormat("0, 0", "uint8 [32]", "set-up"), WireFormat("0, 1", "uint8 [32]", "collection with sums"))),
    # What the server gets in a pass, and gives back
    MessageSpec(Kind.MASKED, table.TO_SERVER, "masked embeddings where they are the largest, zeros elsewhere", "mask",
        table.OPENED,
        (MAXIMA,), (SECURE_MAX,), rounds=table.EMBEDDINGS,
        forms=(WireFormat("s, l", "ring [⌈ρ·N·s_l/8⌉]", "every pass; fixed first layer: s = 0"),)),
    MessageSpec(Kind.MASKED, table.TO_SERVER,
        "of raw features in the first layer", "mask", _RAW, (RAW,), (SECURE_MAX, NO_MESSAGE),
        rounds=table.EMBEDDINGS),
    MessageSpec(Kind.MASKED, table.TO_SERVER, "the first layer's once a session", "mask", _FIXED, (), (SECURE_MAX,
        FIXED),
        rounds=table.EMBEDDINGS),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER, "local embeddings of every layer in the clear", "none", _SUMMED,
        (MAXIMA, SINGLE), (CLEAR, POOLING), rounds=table.EMBEDDINGS, exposed=_LAYERS, forms=_EMBEDDINGS),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER,
        "both parts of the local embeddings of every layer in the clear", "none", _SUMMED,
        (SUMS, SINGLE), (CLEAR, ADDED), rounds=table.EMBEDDINGS, exposed=_LAYERS, forms=_EMBEDDINGS),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER,
        "in the first layer of raw features", "none", _RAW, (RAW,), (CLEAR, NO_MESSAGE),
        rounds=table.EMBEDDINGS),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER, "the first layer's once a session", "none", _FIXED, (), (CLEAR, FIXED),
        rounds=table.EMBEDDINGS),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER, "degrees in the clear", "none",
        "Not protected: the server has the sender's degree of every node that the sender knows, exactly.",
        (POOLED, SINGLE_POOLED), (MEAN,), rounds=table.DEGREES, forms=(WireFormat("0, 0", "real [N_p, 1]", "set-up"),)),
    MessageSpec(Kind.COMBINED, table.FROM_SERVER,
        "global embeddings of the receiver's nodes in the clear, of every layer", "none",
        "The receiver needs them for the next layer and its loss; they tell of other holders' features and edges at "
        "its nodes, as it has all weights but the server's.", (GLOBAL,),
        forms=(WireFormat("s, l", "real [N_p, o_l]", "every pass"),)),
    *_grad_rows(table.TO_SERVER, "gradient of the last layer's global embeddings of the sender's nodes, in the clear",
              "Not protected: the non-zero rows are the sender's training nodes; rows of a class are alike.",
              exposed=_GRADIENTS, forms=(WireFormat("s, l", "real [N_p, o_l]", "training"),)),
    MessageSpec(Kind.GRADIENT, table.TO_SERVER, "those of earlier layers", "none",
        "Spread over the sender's edges, those around training nodes show.", (SPREAD,), (MORE_LAYERS,)),
    *_grad_rows(table.FROM_SERVER, "gradient of what the receiver sent, in the clear, zero where another's prevailed",
        _LABELS,
              CLEAR, POOLING, forms=_RETURNED),
    *_grad_rows(table.FROM_SERVER, "gradient of the maximum at the receiver's nodes, in the clear", _LABELS, SECURE_MAX,
              forms=_RETURNED),
    *_grad_rows(table.FROM_SERVER, "gradient of what the receiver sent, in the clear", _LABELS, CLEAR, ADDED,
              forms=_RETURNED),
    MessageSpec(Kind.GRADIENT, table.FROM_SERVER, "of earlier layers as well", "none",
        "Spread over all holders' edges, those around training nodes show.", (SPREAD,), (MORE_LAYERS, MORE_LEARNING)),
    # Lists of nodes and edges
    MessageSpec(Kind.NODE_KEY, table.FIRST_TO_HOLDER, "key of the hashes, seed of the shared weights", "random",
        "No data went in; nobody but the holders may know the key.",
        forms=(WireFormat("0, 0", "uint8 [72]", "set-up"),)),
    MessageSpec(Kind.NODE_LIST, table.TO_SERVER, "keyed hashes of the sender's nodes", "blinding", _HASHED, (NODES,),
        forms=(WireFormat("0, 0", "uint8 [N_p, 16]", "set-up"),)),
    MessageSpec(Kind.NODE_LIST, table.TO_SERVER, "keyed hashes of its edges", "blinding", _HASHED, (EDGES,),
        (DEDUPLICATED,),
        forms=(WireFormat("0, 1", "uint8 [E_p, 16]", "set-up"),)),
    MessageSpec(Kind.NODE_PLACES, table.FROM_SERVER,
        "number of all nodes, and a random place among them for each of the receiver's",
        "public", "The order is random and new; it tells the receiver nothing but the number.", when=(SECURE_MAX,),
        forms=(WireFormat("0, 0", "int64 [N_p + 1]", "set-up"),)),
    MessageSpec(Kind.NODE_PLACES, table.FROM_SERVER, "which of the receiver's edges count", "none",
        "Those that do not are an earlier holder's too.", (EDGES,), (DEDUPLICATED,),
        forms=(WireFormat("0, 1", "bool [E_p]", "set-up"),)),
    # The secure maximum
    MessageSpec(Kind.SEED, table.FROM_SERVER, "the seed of the receiver's own masks of bits", "random",
        "Made of random numbers; nobody but the server and the receiver may know it.", when=(SECURE_MAX,),
        forms=(WireFormat("0, 1", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.BIT_CORRELATION, table.FROM_SERVER, "products of masks of bits under a fresh mask", "random",
        "Computed from random numbers alone.", when=(SECURE_MAX,),
        forms=(WireFormat("s, exchange", "int64 [groups, planes, count, ⌈n_b/64⌉]", "every pass, ahead"),)),
    MessageSpec(Kind.MASKED_BITS, table.TO_HOLDER,
        "bits of embeddings and of comparisons, under one-time masks", "mask", _BITS,
        when=(SECURE_MAX,), forms=(WireFormat("s, exchange", "int64 [planes, count, ⌈n_b/64⌉]", "every pass"),)),
    MessageSpec(Kind.WIN_SHARE, table.TO_HOLDER, "shares of where the receiver attains the maximum", "share",
        "Uniform by itself; the sum tells the receiver where its own embedding is the largest, which it is to learn.",
        (GLOBAL,), (SECURE_MAX,), forms=(WireFormat("s, l", "int64 [⌈N·s_l/64⌉]", "every pass"),)),
    # What holders open among themselves
    *table.summed_rows(Kind.MASKED_GRADIENT, "masked gradients of the shared weights, and the loss", (WEIGHTS,), _ALONE,
        forms=(WireFormat("s, 0", "ring [W + 1]", "training"),)),
    *table.summed_rows(Kind.MASKED,
        "masked numbers of training nodes, losses, class counts and score histograms", (TALLIES,), _ALONE, CLASSES,
        forms=(WireFormat("0, 0", "ring [1]", "set-up"),
               WireFormat("tally, 0", "ring [3 + 3C² + 4KB]", "every evaluation"))),
    *table.summed_rows(Kind.MASKED, "masked numbers of training nodes of each class", (TALLIES,), _ALONE, BALANCED,
        forms=(WireFormat("1, 0", "ring [C]", "before the first epoch"),)),
    *table.summed_rows(Kind.MASKED,
        "masked numbers of targets, sums of these, of errors and of squares", (VALUE_TALLIES,), _ALONE, VALUES,
        forms=(WireFormat("0, 0", "ring [1]", "set-up"), WireFormat("tally, 0", "ring [15]", "every evaluation"))),
    *table.summed_rows(Kind.MASKED, "masked sums of training targets", (TARGETS,), _ALONE, SUMS_BEFORE,
        forms=(WireFormat("1 … 2, 0", "ring [3]; [1]", "before the first epoch"),)),
    *COLUMN_ROWS,
)
# fmt: on
