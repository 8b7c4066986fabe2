"""What a sealed job sends, and reveals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.messages import (
    ALIGNMENT_ROWS,
    COMMON_ROWS,
    FROM_SERVER,
    LABELLED_TO_HOLDER,
    LABELLED_TO_SERVER,
    TO_HOLDER,
    TO_SERVER,
    Condition,
    MessageSpec,
    Revelation,
    Route,
    WireFormat,
    judgement,
)


def _other_holders(job: SealedJob) -> Sequence[PartyId]:
    return [name for name in job.data.names if name != job.data.label_party]


def _all(job: SealedJob) -> Sequence[PartyId]:
    return job.data.names


# One row, few lines: a table is read across.
# fmt: off
PREDICTIONS: Final = Revelation[SealedJob]("predicted-classes", "The label holder learns every common node's "
    "predicted class, which depends on all holders' features and edges.",
    lambda job: f"output={job.output}", _other_holders)
MARGINS: Final = Revelation[SealedJob]("predicted-margins", "The label holder learns every common node's margins, "
    "each class's score less the first one's: as much as probabilities.",
    lambda job: f"output={job.output}", _other_holders)
NAMED: Final = Revelation[SealedJob]("named-classes", "The label holder learns the predicted class of nodes that it "
    "names, in all predictions of a run named_nodes at most, from all holders' features and edges.",
    lambda job: f"named_nodes={job.named_nodes}", _other_holders)
NAMED_MARGINS: Final = Revelation[SealedJob]("named-margins", "The label holder learns the margins of nodes that it "
    "names, each class's score less the first one's: as much as probabilities.",
    lambda job: f"output={job.output}", _other_holders)
ANSWER_TIMES: Final = Revelation[SealedJob]("answer-times", "Every holder learns when the label holder opens the "
    "prediction of a node, and of how many, and not of which.",
    lambda job: f"online={job.online}", lambda job: [job.data.label_party])
RELEASED: Final = Revelation[SealedJob]("released-weights", "At the end every holder learns the first layer's weights "
    "of its own columns, from all features, edges and labels; with many columns it can work out which of its nodes "
    "are trained on and share a class; zeros tell whether they are a mean.",
    lambda job: f"release={job.release}", _all)
SCORES: Final = Revelation[SealedJob]("sealed-scores", "The label holder learns at every evaluation how many "
    "validation nodes are classified, or pairs ranked, rightly, from all holders' features and edges; all parties "
    "learn whether that was the best so far.",
    lambda job: f"train.select_by={job.train.select_by}", _other_holders)
VOTES: Final = Revelation[SealedJob]("noisy-votes", "The label holder learns, of every node that it is told the "
    "prediction of, noisy counts of its neighbours at all other holders in each class: by label, or as the network, "
    "trained without these edges, predicts.",
    lambda job: "privacy", _other_holders)
RECORD_SCORES: Final = Revelation[SealedJob]("record-scores", "The label holder learns, of every common node that it "
    "does not train on, a score of every class from all other holders' columns of it, by weights that nobody sees.",
    lambda job: "privacy.unit=training-record", _other_holders)
NODE_BITS: Final = Revelation[SealedJob]("node-bits", "The label holder learns, of every common node that it does not "
    "train on, a noisy bit from each other holder: which of two classes that holder's columns speak for.",
    lambda job: "privacy.unit=node", _other_holders)
CLASSES_ONLY: Final = Condition[SealedJob]("`output: classes`", lambda job: job.output == "classes")
SCORED: Final = Condition[SealedJob]("`select_by: accuracy` or `auc`", lambda job: job.train.select_by != "last")
WITH_MARGINS: Final = Condition[SealedJob]("`output: margins`", lambda job: job.output == "margins")
ALL_NODES: Final = Condition[SealedJob]("`named_nodes: null`", lambda job: not job.outcome.predicts_named)
NAMED_NODES: Final = ALL_NODES.otherwise("`named_nodes`")
ONLINE: Final = Condition[SealedJob]("`online`", lambda job: job.online)
AT_ONCE: Final = ONLINE.otherwise("`online: false`")
DEALT: Final = Condition[SealedJob]("`trust: dealer`", lambda job: job.trust == "dealer")
BY_HOLDER: Final = Condition[SealedJob]("`trust: majority`", lambda job: job.trust == "majority")
UNDEALT: Final = Condition[SealedJob]("`trust: nobody`", lambda job: job.trust == "nobody")
MASKED: Final = UNDEALT.otherwise("not `trust: nobody`")
BY_HOLDERS: Final = DEALT.otherwise("`trust: majority` or `nobody`")
CHECKED: Final = Condition[SealedJob]("`dealer_checks`", lambda job: job.dealer_checks > 0)
NOISED: Final = Condition[SealedJob]("`privacy.unit: edge`", lambda job: job.votes is not None)
RECORDS: Final = Condition[SealedJob]("`privacy.unit: training-record`",
    lambda job: job.records is not None and job.bits is None)
BITS: Final = Condition[SealedJob]("`privacy.unit: node`", lambda job: job.bits is not None)
TRAINED: Final = Condition[SealedJob]("not `privacy.unit: training-record` or `node`", lambda job: job.records is None)
SIGNED: Final = Condition[SealedJob]("`disputes`", lambda job: job.disputes)
RELEASES: Final = Condition[SealedJob]("`release: holders`", lambda job: job.release == "holders")
TO_LABEL_HOLDER: Final = Route[SealedJob](
    "holder", "label holder", lambda job, _, receiver: receiver == job.data.label_party
)
FROM_DEALING: Final = Route[SealedJob](
    "holder that deals", "holder", lambda job, sender, _: sender == job.dealing_party
)
TO_DEALING: Final = Route[SealedJob](
    "holder", "holder that deals", lambda job, _, receiver: receiver == job.dealing_party
)
FIRST_TO_DEALING: Final = Route[SealedJob](
    "first other holder", "holder that deals", lambda job, *ends: ends == (job.computing[0], job.dealing_party)
)
SERVER_TO_WAITING: Final = Route[SealedJob](
    SERVER, "holder that deals, or first",
    lambda job, _, receiver: receiver == (job.dealing_party or job.computing[0])
)
FIRST_TWO: Final = Route[SealedJob](
    "first of those that compute", "second", lambda job, *ends: ends == job.computing[:2]
)

_COUNT: Final = "Opens one number to the receiver at every evaluation: the mask is of that one value."
_WIRE: Final = "Uniform: the mask is drawn anew for every value, and up to all holders but one know nothing of it."
_DEALT: Final = "Made of random numbers; none of the holders' data went in."
_DEALT_DATA: Final = (
    "Uniform: made of random numbers and of the sender's data, less what other holders draw, which the receiver lacks. "
    "All other holders together read the sender's data."
)
_PAIR: Final = "Random: what both draw from it hides what they send a holder that deals, or cancels in their sums."
_TOGETHER: Final = (
    "Ciphertexts under the sender's key, answers to the receiver's under a flood of noise, and oblivious transfers: "
    "the receiver learns a share of a result, which is uniform."
)
_PLACES: Final = "Uniform for the receiver, which lacks the random order that it is relative to."
_SHARES: Final = "Masks of the sender's under further masks; the receiver lacks the sender's share of either."
_ROWS: Final = "Uniform for the receiver, which lacks what the first two other holders draw together."
_NAMED: Final = (
    "Opens the predictions of the nodes that the receiver picked, and nothing else: the mask is of these values, and "
    "which nodes they are of the sender does not learn."
)
_POSITIONS: Final = "Uniform among those not asked for before: the sender drew the order, and nobody else has it."
_KEPT: Final = (
    "Opens the predictions at the positions that the receiver asked for, and nothing else: a share is uniform, or zero "
    "of a holder that deals, and was kept when nothing was opened. The sender counts them first, named_nodes at most."
)
_NOISY: Final = (
    "ε bounds what the receiver can infer of one of the sender's edges from all predictions and counts of the run, "
    "even with all other holders; it is paid for once in the sender's ledger, before the first of them. It is not "
    "about features."
)
_SCORED: Final = (
    "Opens scores to the receiver, 0 at its training nodes: ε bounds what it can infer of one training node's columns "
    "at the sender, even with all other holders, and is paid for once in the sender's ledger, before the first scores. "
    "It is not about the nodes that are scored."
)
_BITS: Final = (
    "Opens flipped bits to the receiver, 0 at its training nodes: ε bounds what it can infer of one node's columns at "
    "the sender, even with all other holders, and is paid for once in the sender's ledger, before the first bits. The "
    "same bits are opened in every prediction of the run."
)
_OWN: Final = "Opens these weights to the receiver, and nothing else: the mask is drawn anew for them."
_RANGE: Final = (
    "Opens one bit to every holder: whether any range test of training and prediction has failed. The mask is of that "
    "bit alone. A job whose bit is set ends without predictions."
)
_SIGNED: Final = (
    "A signature says who sent what the receiver has anyway. The digest is of the sender's data behind a secret key of "
    "256 bits: without it no guess can be tested."
)
_LEARNED: Final = "Opens to the receiver what is stated for it, and nothing else: nothing else is under that mask."
_OUTPUT: Final = "Opens the predictions to the receiver, and nothing else: the mask is of that one value."

PASSES: Final[tuple[MessageSpec[SealedJob], ...]] = (
    MessageSpec(Kind.SEED, FROM_SERVER, "the seed of the receiver's own masks", "random", _DEALT, when=(DEALT,),
        forms=(WireFormat("0, 0", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.SEED, FROM_DEALING, "the seed of the receiver's own masks", "random", _DEALT, when=(BY_HOLDER,),
        forms=(WireFormat("0, 0", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.SEED, FIRST_TWO, "the seed of what both draw, and nobody else knows", "random", _PAIR,
        when=(BY_HOLDERS,), forms=(WireFormat("0, 0", "uint8 [32]", "set-up"),)),
    MessageSpec(Kind.CORRELATION, FROM_SERVER, "products of masks under fresh masks", "random", _DEALT, when=(DEALT,),
        forms=(WireFormat("k, 0", "uint8", "every pass"),)),
    MessageSpec(Kind.CORRELATION, FROM_DEALING, "products of masks, and summands of the sender's, under fresh masks",
        "mask", _DEALT_DATA, when=(BY_HOLDER,), forms=(WireFormat("k, 0", "uint8", "every pass"),)),
    MessageSpec(Kind.CORRELATION, TO_HOLDER, "what two holders compute shares of products and bits from", "blinding",
        _TOGETHER, when=(UNDEALT,), forms=(WireFormat("k, 0", "integers", "every pass"),)),
    MessageSpec(Kind.COMMITMENT, FROM_SERVER,
        "digests of what is going to be dealt, or the key of a dealing that is not used", "random", _DEALT,
        when=(CHECKED,),
        forms=(WireFormat("dealing, 0", "uint8 [1 + messages, 32]", "set-up"),
               WireFormat("dealing, 3", "uint8 [32]", "set-up, where it is opened"))),
    MessageSpec(Kind.COMMITMENT, TO_HOLDER, "the digest of a dealer's key, and whether a dealing is opened", "random",
        _DEALT, when=(CHECKED,),
        forms=(WireFormat("dealing, 1", "uint8 [1, 32]", "set-up"), WireFormat("dealing, 2", "bool [1]", "set-up"))),
    MessageSpec(Kind.COMMITMENT, TO_SERVER, "whether a dealing is opened", "random",
        "A bit that the first holder draws.", when=(CHECKED,), forms=(WireFormat("dealing, 2", "bool [1]", "set-up"),)),
    MessageSpec(Kind.READY, TO_SERVER, "that so much of what was dealt has been used, or a checkpoint passed", "none",
        "One byte, always the same.", forms=(WireFormat("stride, 0", "uint8 [1]", "every 16 MiB"),)),
    MessageSpec(Kind.READY, TO_DEALING, "that so much of what was dealt has been used, or a checkpoint passed", "none",
        "One byte, always the same.", when=(BY_HOLDER,),
        forms=(WireFormat("stride, 0", "uint8 [1]", "every 16 MiB"),)),
    MessageSpec(Kind.READY, SERVER_TO_WAITING, "that a checkpoint passed", "none", "One byte, always the same.",
        when=(BY_HOLDERS,), forms=(WireFormat("epoch, 1", "uint8 [1]", "every checkpoint"),)),
    MessageSpec(Kind.MASKED_WIRE, TO_HOLDER, "secrets, or shares of them, under fresh masks", "mask", _WIRE,
        when=(MASKED,), forms=(WireFormat("k, round", "ring, as what is opened", "every pass"),)),
    MessageSpec(Kind.MASKED_BITS, TO_HOLDER,
        "bits of comparisons, and with two holders of truncations, under one-time masks", "mask", _WIRE,
        when=(MASKED,),
        forms=(WireFormat("k, level", "ring [1 or 2, groups, ⌈entries/64⌉]", "every pass"),
               WireFormat("k, 0", "ring [⌈entries/64⌉]", "every pass, with two holders"))),
    MessageSpec(Kind.PLACEMENT, TO_HOLDER, "orders of edges and rows relative to random ones", "blinding", _PLACES,
        when=(MASKED,),
        forms=(WireFormat("k, 0", "int64 [2·(N + Ē_p) + N]", "set-up"),
               WireFormat("k, 0", "int64 [rows]", "rows chosen"))),
    MessageSpec(Kind.MASKED_ROWS, TO_DEALING, "masked values, or shares of them, under further masks", "mask", _ROWS,
        when=(BY_HOLDER,),
        forms=(WireFormat("k, 0", "int64 [Ē_p, 2]", "set-up"),
               WireFormat("k, 0", "int32 [N + Ē_p, columns], [2·N + Ē_p, columns]", "every hop over its edges"),
               WireFormat("k, 0", "int64 [N, columns]", "rows that it chooses"))),
    MessageSpec(Kind.MASKED_ROWS, TO_HOLDER, "shares of masks under further masks", "mask", _SHARES, when=(MASKED,),
        forms=(WireFormat("k, 0", "int32 [N + Ē_p, columns]", "every hop"),)),
    MessageSpec(Kind.MASK_SHARE, TO_HOLDER, "shares of the mask of the bit that says whether numbers left their range",
        "share", _RANGE, when=(TRAINED,), forms=(WireFormat("k, 0", "int64 [1]", "inference, release"),)),
    MessageSpec(Kind.MASK_SHARE, FIRST_TO_DEALING, "what the receiver learns as others do, under a mask that it knows",
        "share", _LEARNED, when=(BY_HOLDER,), forms=(WireFormat("k, 0", "as of these", "inference, evaluation"),)),
)
"""What holders and dealer compute by, whatever is opened at the end."""

ROWS: Final[tuple[MessageSpec[SealedJob], ...]] = (
    *COMMON_ROWS,
    *ALIGNMENT_ROWS,
    *PASSES,
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of the predicted classes", "share", _OUTPUT,
        (PREDICTIONS,), (CLASSES_ONLY, ALL_NODES), forms=(WireFormat("k, 0", "int64 [N, 1]", "inference"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of the predicted margins", "share", _OUTPUT,
        (PREDICTIONS, MARGINS), (WITH_MARGINS, ALL_NODES, TRAINED),
        forms=(WireFormat("k, 0", "int64 [N, C − 1]", "inference"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of the named nodes' classes", "share", _NAMED,
        (NAMED,), (CLASSES_ONLY, NAMED_NODES, AT_ONCE), forms=(WireFormat("k, 0", "int64 [named, 1]", "prediction"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of the named nodes' margins", "share", _NAMED,
        (NAMED, NAMED_MARGINS), (WITH_MARGINS, NAMED_NODES, AT_ONCE),
        forms=(WireFormat("k, 0", "int64 [named, C − 1]", "prediction"),)),
    MessageSpec(Kind.POSITIONS, LABELLED_TO_HOLDER, "positions in the secret order of kept shares", "blinding",
        _POSITIONS, (ANSWER_TIMES,), (ONLINE,), forms=(WireFormat("k, 0", "int64 [positions]", "answers"),)),
    MessageSpec(Kind.SHARE, TO_LABEL_HOLDER, "kept shares of the classes at these positions", "share", _KEPT,
        (NAMED,), (CLASSES_ONLY, ONLINE), forms=(WireFormat("k, 0", "int64 [positions, 1]", "answers"),)),
    MessageSpec(Kind.SHARE, TO_LABEL_HOLDER, "kept shares of the margins at these positions", "share", _KEPT,
        (NAMED, NAMED_MARGINS), (WITH_MARGINS, ONLINE),
        forms=(WireFormat("k, 0", "int64 [positions, C − 1]", "answers"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER,
        "shares of the mask of noisy votes over edges of all holders but the receiver", "share", _NOISY, (VOTES,),
        (NOISED,), forms=(WireFormat("k, 0", "int64 [N or named, C]", "inference"),), paid=True),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of scores by hidden weights", "share", _SCORED,
        (RECORD_SCORES,), (RECORDS,), forms=(WireFormat("k, 0", "int64 [N, C], of two classes [N, 1]", "inference"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER, "shares of the mask of noisy bits of all holders but the receiver",
        "share", _BITS, (NODE_BITS,), (BITS,), forms=(WireFormat("k, 0", "int64 [N, P − 1]", "inference"),), paid=True),
    MessageSpec(Kind.MASK_SHARE, TO_HOLDER, "shares of the mask of the weights of the receiver's own columns", "share",
        _OWN, (RELEASED,), (RELEASES,), forms=(WireFormat("k, 0", "int64 [own columns, d]", "end of training"),)),
    MessageSpec(Kind.MASK_SHARE, TO_LABEL_HOLDER,
        "shares of the mask of how many validation nodes, or pairs of them, are right", "share", _COUNT, (SCORES,),
        (SCORED,), forms=(WireFormat("k, 0", "int64 [1, 1]", "evaluation"),)),
    *(MessageSpec(Kind.SIGNATURE, ends, "signatures, and a digest of what the sender puts in", "blinding", _SIGNED,
          when=(SIGNED,),
          forms=(WireFormat("0, 0", "uint8 [bytes of JSON]", "set-up"), WireFormat("0, 65535", "uint8 [32]", "set-up"),
                 WireFormat("step, 256·round + kind", "uint8 [64]", "every message of a training")))
      for ends in (TO_HOLDER, TO_SERVER, FROM_SERVER)),
    judgement(LABELLED_TO_HOLDER, SCORED),
    judgement(LABELLED_TO_SERVER, SCORED),
)
# fmt: on
