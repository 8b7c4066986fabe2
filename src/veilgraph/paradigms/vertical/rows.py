"""What a vertical job sends, and reveals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol import messages as table
from veilgraph.protocol.messages import Condition, MessageSpec, Revelation, Route, WireFormat

_Row = MessageSpec[VerticalJob]
_Told = Revelation[VerticalJob]
_Fact = Condition[VerticalJob]
_Route = Route[VerticalJob]

# What is revealed


def _other_holders(job: VerticalJob) -> Sequence[PartyId]:
    return [name for name in job.duties.publishing if name != job.data.label_party]


def _label_holder(job: VerticalJob) -> Sequence[PartyId]:
    return [name for name in job.duties.publishing if name == job.data.label_party]


def _method_setting(job: VerticalJob) -> str:
    return f"model.initial.method={job.model.initial.method}"


def _strategy_setting(job: VerticalJob) -> str:
    return f"model.combine.strategy={job.model.combine.strategy}"


def _unmasked_setting(job: VerticalJob) -> str:
    return "model.combine.masked=false" if job.model.combine.linear else _strategy_setting(job)


# fmt: off
H0: Final = _Told(
    "initial-embeddings", "Every holder sees h0 of every node, a linear image of all holders' features, after every "
    "change of its weights; the changes tell of inner products of features.", _method_setting)
H0_GRADIENTS: Final = _Told(
    "initial-gradients", "Every holder sees every step's sum of all holders' gradients of h0; its non-zero rows tell "
    "of edges around the training nodes.", _method_setting)
SINGLE_H0: Final = _Told(
    "single-initial-embeddings", "Each of two holders has, in every step, the other's linear image of features and "
    "its gradient exactly.",
    lambda job: f"{_method_setting(job)}, 2 holders")
COMBINED: Final = _Told(
    "combined-embeddings", "Every holder sees the combined embeddings of all rounds but the last; holders and server "
    "can infer edges from what propagation makes of them.",
    lambda job: f"model.rounds={job.model.rounds}")
OUTPUT: Final = _Told(
    "output-embeddings", "The label holder sees the server's output for every node, and predicts from it.",
    lambda _: "every job", _other_holders)
AS_OUTPUT: Final = _Told(
    "combined-as-output", "The label holder sees every node's last combined embedding: with concat every holder's "
    "part, with two holders the other's; edges can be inferred.",
    lambda _: "model.server.layers=0", _other_holders)
SUMS: Final = _Told(*table.EMBEDDING_SUMS, _strategy_setting)
SINGLE: Final = _Told(*table.SINGLE_EMBEDDINGS, _unmasked_setting)
POOLED: Final = _Told(*table.POOLED_DEGREES, _strategy_setting)
SINGLE_POOLED: Final = _Told(*table.SINGLE_DEGREES, lambda job: f"{_strategy_setting(job)}, masked=false")
TRAINED: Final = _Told(*table.TRAINING_ROWS, lambda _: "every job", _label_holder)
TRAINED_NODES: Final = _Told(*table.TRAINING_NODES, _label_holder, part_of="training-rows")
EDGES: Final = _Told(
    "label-holder-edges", "From gradients the server and every holder learn of the label holder's edges around the "
    "training nodes.",
    lambda job: f"model.head.logit_hops={job.model.head.logit_hops}", _label_holder)

# In which jobs, and between whom

PERTURBED_LABELS: Final = _Fact("`label_privacy`", lambda job: job.label_privacy is not None)
TRUE_LABELS: Final = PERTURBED_LABELS.otherwise("no `label_privacy`")
COLLABORATIVE: Final = _Fact("`initial.method: collaborative`", lambda job: job.model.initial.method == "collaborative")
SECURE_SUM: Final = _Fact("`initial.method: secure-sum`", lambda job: job.model.initial.method == "secure-sum")
MASKED: Final = _Fact("masked", lambda job: job.passes.is_masked)
UNMASKED: Final = MASKED.otherwise("not masked")
WEIGHTED: Final = _Fact("`strategy: degree-weighted`", lambda job: job.model.combine.kind.needs_weight)
MORE_ROUNDS: Final = _Fact("`rounds` > 1", lambda job: job.model.rounds > 1)
NO_LAYERS: Final = _Fact("`server.layers: 0`", lambda job: job.model.server.layers == 0)
LOGIT_HOPS: Final = _Fact("`logit_hops` > 0", lambda job: job.model.head.logit_hops > 0)

TO_LABELLED: Final = _Route(SERVER, "label holder", lambda job, _, receiver: receiver == job.data.label_party)
TO_ANOTHER: Final = _Route(SERVER, "other holder", lambda job, _, receiver: receiver != job.data.label_party)

# fmt: on
# What is sent

_DEALT: Final = "Uniform for the receiver; the server, which dealt the mask, must not get it."
_SPREAD: Final = "Non-zero rows tell of the label holder's edges around the training nodes."
_OF_PERTURBED: Final = "Computed from labels that were perturbed once, and paid for in the label holder's ledger."
_UNCHANGED: Final = "No layer of the server has changed it."
_EVERY_H0: Final = (WireFormat("e, 0", "ring [N, d]", "every h⁰"),)
_RETURNED: Final = WireFormat("s, r", "real [N, d]", "training")
_OUTPUT_GRADIENT: Final = WireFormat("s, 0", "real [N, w]", "training")


def _perturbed_rows(ends: Route[Any], what: str, form: WireFormat) -> tuple[_Row, _Row]:
    """Build the message rows of a gradient of perturbed labels: of its values, and of which rows are not zero."""
    when, shown = (PERTURBED_LABELS,), "which of its rows are not zero, in the clear"
    return (
        MessageSpec(Kind.GRADIENT, ends, what, "noise", _OF_PERTURBED, (TRAINED,), when, forms=(form,)),
        MessageSpec(Kind.GRADIENT, ends, shown, "none", table.TRAINED_ON, (TRAINED_NODES,), when),
    )


# One row, few lines: a table is read across.
# fmt: off
ROWS: Final[tuple[_Row, ...]] = (
    *table.COMMON_ROWS,
    *table.ALIGNMENT_ROWS,
    table.judgement(table.LABELLED_TO_HOLDER),
    table.judgement(table.LABELLED_TO_SERVER),
    # Initial embeddings
    MessageSpec(Kind.KEY, table.TO_HOLDER, "a fresh public key", "random",
        "Made of random numbers; its secret half stays at the sender.",
        forms=(WireFormat("0, 0", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.SEED, table.FROM_SERVER, "the seed of the receiver's own masks", "random",
        "Made of random numbers; nobody but the server and the receiver may know it.", when=(COLLABORATIVE,),
        forms=(WireFormat("0, 0", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.CORRELATION, table.FROM_SERVER, "products of masks under a fresh mask", "random",
        "Computed from random numbers alone.", when=(COLLABORATIVE,),
        forms=(WireFormat("e, 0", "ring [N, d]", "every h⁰"),
            WireFormat("e, 1", "ring [F_i, d], i the receiver", "training"))),
    MessageSpec(Kind.READY, table.TO_SERVER, "that a dealt matrix has been used, where there are many", "none",
        "One byte, always the same; a large graph's rows are multiplied in blocks.", when=(COLLABORATIVE,),
        forms=(WireFormat("e, block", "uint8 [1]", "every h⁰ of a graph of more than two blocks"),)),
    MessageSpec(Kind.STATIC_DIFFERENCE, table.TO_HOLDER,
        "features minus a one-time mask", "mask", _DEALT, when=(COLLABORATIVE,),
        forms=(WireFormat("0, 0", "ring [N, F_i], i the sender", "set-up"),)),
    MessageSpec(Kind.MASKED_OPERAND, table.TO_HOLDER,
        "shares of weights and, in training, gradients of h0, minus one-time masks",
        "mask", _DEALT, when=(COLLABORATIVE,),
        forms=(WireFormat("e, 0", "ring [F_i, d], i the receiver", "every h⁰"),
            WireFormat("e, 1", "ring [N, d]", "training"))),
    MessageSpec(Kind.SHARE, table.TO_HOLDER, "additive shares of h0", "share",
        "Uniform by itself; the sum over all holders is h0, which every holder is meant to learn.",
        (H0,), (COLLABORATIVE,), forms=_EVERY_H0),
    *table.summed_rows(Kind.MASKED, "masked parts of h0", (H0,), (SINGLE_H0,), SECURE_SUM, forms=_EVERY_H0),
    *table.summed_rows(Kind.MASKED_GRADIENT, "masked gradients of h0", (H0_GRADIENTS,), (SINGLE_H0,), SECURE_SUM,
        forms=(WireFormat("e, 0", "ring [N, d]", "training"),)),
    # COMBINE
    MessageSpec(Kind.MASKED, table.TO_SERVER, "masked embeddings", "mask", table.OPENED, (SUMS,), (MASKED,),
        rounds=table.EMBEDDINGS, forms=(WireFormat("s, r", "ring [N, d]", "every pass"),)),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER, "embeddings in the clear", "none",
        "Not protected: the server has the sender's embedding of every node.", (SUMS, SINGLE), (UNMASKED,),
        rounds=table.EMBEDDINGS, forms=(WireFormat("s, r", "real [N, d]", "every pass"),)),
    MessageSpec(Kind.MASKED, table.TO_SERVER, "masked degrees", "mask", table.OPENED, (POOLED,), (MASKED, WEIGHTED),
        rounds=table.DEGREES,
        forms=(WireFormat("0, 0", "ring [N, 1]", "set-up"),)),
    MessageSpec(Kind.EMBEDDING, table.TO_SERVER, "degrees in the clear", "none",
        "Not protected: the server has the sender's degree of every node, exactly.",
        (POOLED, SINGLE_POOLED), (UNMASKED, WEIGHTED), rounds=table.DEGREES,
        forms=(WireFormat("0, 0", "real [N, 1]", "set-up"),)),
    # Earlier rounds
    MessageSpec(Kind.MASKED_GRADIENT, table.TO_SERVER, "masked gradients of earlier rounds", "mask", table.OPENED,
        (COMBINED,), (MORE_ROUNDS, MASKED), forms=(WireFormat("s, r < R", "ring [N, d]", "training"),)),
    # The output
    MessageSpec(Kind.COMBINED, TO_LABELLED, "output z_L in the clear", "none",
        "The label holder needs it for loss and predictions; it tells of all holders' features and edges.", (OUTPUT,),
        forms=(WireFormat("s, R", "real [N, w]", "every pass"),)),
    MessageSpec(Kind.COMBINED, TO_LABELLED, "which is the combined embedding itself", "none", _UNCHANGED, (AS_OUTPUT,),
        (NO_LAYERS,)),
    MessageSpec(Kind.COMBINED, table.FROM_SERVER, "combined embeddings of earlier rounds in the clear", "none",
        "Not protected: the receiver can infer other holders' edges from them.", (COMBINED,), (MORE_ROUNDS,),
        forms=(WireFormat("s, r < R", "real [N, d]", "every pass"),)),
    # Gradients
    MessageSpec(Kind.GRADIENT, table.LABELLED_TO_SERVER, "gradient of z_L in the clear", "none", table.TRAINING,
        (TRAINED,), (TRUE_LABELS,), forms=(_OUTPUT_GRADIENT,)),
    *_perturbed_rows(table.LABELLED_TO_SERVER, "gradient of z_L, of perturbed labels", _OUTPUT_GRADIENT),
    MessageSpec(Kind.GRADIENT, table.LABELLED_TO_SERVER, "spread over the label holder's edges", "none", _SPREAD,
        (EDGES,), (LOGIT_HOPS,)),
    MessageSpec(Kind.GRADIENT, table.TO_SERVER, "gradients of earlier rounds in the clear", "none",
        "Not protected: the server has the sender's own gradients of the combined embeddings.", (SINGLE,),
        (MORE_ROUNDS, UNMASKED), forms=(WireFormat("s, r < R", "real [N, d]", "training"),)),
    MessageSpec(Kind.GRADIENT, TO_LABELLED, "gradient of what the receiver published, in the clear", "none",
        "It comes from the receiver's own labels.", forms=(_RETURNED,)),
    MessageSpec(Kind.GRADIENT, TO_ANOTHER, "gradient of what the receiver published, in the clear", "none",
        table.TRAINING, (TRAINED,), (TRUE_LABELS,), forms=(_RETURNED,)),
    *_perturbed_rows(TO_ANOTHER, "gradient of what the receiver published, of perturbed labels", _RETURNED),
    MessageSpec(Kind.GRADIENT, TO_ANOTHER, "spread over the label holder's edges", "none", _SPREAD, (EDGES,),
        (LOGIT_HOPS,)),
)
# fmt: on
