"""What a union job sends, and reveals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from veilgraph.core.types import Kind, PartyId
from veilgraph.paradigms.horizontal.rows import COLUMN_ROWS
from veilgraph.paradigms.sealed.rows import ALL_NODES, CLASSES_ONLY, NAMED_NODES, PASSES, SCORED, WITH_MARGINS
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import (
    COMMON_ROWS,
    LABELLED_TO_SERVER,
    TO_HOLDER,
    Condition,
    MessageSpec,
    Revelation,
    Route,
    WireFormat,
    judgement,
)


def _all(job: UnionJob) -> Sequence[PartyId]:
    return job.data.names


def _owners(job: UnionJob) -> Sequence[PartyId]:
    return job.owners


ACROSS: Final = Condition[UnionJob]("`across`", lambda job: job.across is not None)
BOTH_ENDS: Final = ACROSS.otherwise("`across: null`")
TO_OWNER: Final = Route[UnionJob]("holder", "holder of nodes", lambda job, _, receiver: receiver != job.across)
AMONG_OWNERS: Final = Route[JobSettings](
    "holder of nodes", "holder of nodes", lambda job, sender, receiver: job.inputs.across not in (sender, receiver)
)
TO_ACROSS: Final = Route[UnionJob](
    "holder of nodes", "holder of the edges across", lambda job, _, receiver: receiver == job.across
)
REPORTED: Final = Route[JobSettings](
    "label holder",
    "holder of the edges across",
    lambda job, sender, receiver: sender == job.data.label_party and receiver == job.inputs.across,
)


# One row, few lines: a table is read across.
# fmt: off
CLASSES: Final = Revelation[UnionJob]("own-classes", "Every holder learns its own nodes' predicted classes, which "
    "depend on all holders' features, edges and labels.",
    lambda job: f"output={job.output}", _all)
MARGINS: Final = Revelation[UnionJob]("own-margins", "Every holder learns its own nodes' margins, each class's score "
    "less the first one's: as much as probabilities.",
    lambda job: f"output={job.output}", _all)
NAMED: Final = Revelation[UnionJob]("own-named-classes", "Every holder learns the predicted class of own nodes that "
    "it names, in all predictions of a run named_nodes at most, from all holders' features, edges and labels.",
    lambda job: f"named_nodes={job.named_nodes}", _all)
NAMED_MARGINS: Final = Revelation[UnionJob]("own-named-margins", "Every holder learns the margins of own nodes that "
    "it names, each class's score less the first one's: as much as probabilities.",
    lambda job: f"output={job.output}", _all)
SCORES: Final = Revelation[UnionJob]("union-scores", "Every holder learns at every evaluation how many of all "
    "validation nodes are classified, or pairs ranked, rightly, of how many, from all features, edges and labels; the "
    "server and a holder of the edges across learn whether that was the best so far.",
    lambda job: f"train.select_by={job.train.select_by}", _all)
EDGES: Final = Revelation[UnionJob]("confirmed-edges", "A holder learns which of its edges to another holder's nodes "
    "that one has as well; of others between them it can test pairs of ids that it guesses, and sees how many have "
    "the same end.", lambda _: "paradigm=union", _all)
NODES: Final = Revelation[UnionJob]("listed-nodes", "The holder of the edges across learns which ends of its edges "
    "are which holder's nodes, and can test ids that it guesses.",
    lambda job: f"across={job.across}", _owners)

_OWN: Final = "Opens the predictions of the receiver's own nodes to it, and nothing else: the mask is of these values."
_NAMED: Final = (
    "Opens the predictions of the receiver's own nodes that it picked, and nothing else: the mask is of these values, "
    "and which nodes they are of the sender does not learn."
)
_COUNT: Final = "Opens one or two numbers at every evaluation: the mask is of these values."
_DIFFERS: Final = (
    "Opens a bit of every two holders: whether they put in the same edges between their nodes. The mask is of these "
    "bits."
)
_ADDRESS: Final = (
    "The receiver reads those that are edges of its own, and learns that the sender has them; of others it can test "
    "pairs of ids that it guesses, one end of which is its own node. There is padding among them."
)
_LISTED: Final = (
    "The receiver reads those of nodes that its edges join, and can test ids that it guesses. All of the sender's rows "
    "are listed, those without a node under random hashes."
)

ROWS: Final[tuple[MessageSpec[UnionJob], ...]] = (
    *COMMON_ROWS,
    *(replace(row, ends=AMONG_OWNERS) for row in COLUMN_ROWS),
    MessageSpec(Kind.KEY, AMONG_OWNERS, "a fresh public key", "random",
        "Made of random numbers; its secret half stays at the sender.",
        forms=(WireFormat("0, 1", "uint8 [32]", "collection with sums"),)),
    *PASSES,
    MessageSpec(Kind.NODE_LIST, TO_HOLDER, "hashes of the sender's edges with the receiver's nodes, and padding",
        "none", _ADDRESS, (EDGES,), (BOTH_ENDS,),
        forms=(WireFormat("0, 0", "uint8 [edges, rounded up; 16]", "set-up"),)),
    MessageSpec(Kind.NODE_PLACES, TO_HOLDER, "the rows of the sender's ends of these edges in this session", "random",
        "Drawn at random by the sender.", when=(BOTH_ENDS,),
        forms=(WireFormat("0, 0", "int64 [edges, rounded up]", "set-up"),)),
    MessageSpec(Kind.NODE_LIST, TO_ACROSS, "hashes of the sender's nodes, and padding", "none", _LISTED, (NODES,),
        (ACROSS,), forms=(WireFormat("0, 0", "uint8 [rows of the sender, 16]", "set-up"),)),
    MessageSpec(Kind.NODE_PLACES, TO_ACROSS, "the rows of these in this session", "random",
        "Drawn at random by the sender.", when=(ACROSS,),
        forms=(WireFormat("0, 0", "int64 [rows of the sender]", "set-up"),)),
    MessageSpec(Kind.MASK_SHARE, TO_OWNER, "shares of the mask of the predicted classes of the receiver's nodes",
        "share", _OWN, (CLASSES,), (CLASSES_ONLY, ALL_NODES),
        forms=(WireFormat("k, 0", "int64 [rows of the receiver, 1]", "inference"),)),
    MessageSpec(Kind.MASK_SHARE, TO_OWNER, "shares of the mask of the margins of the receiver's nodes", "share", _OWN,
        (CLASSES, MARGINS), (WITH_MARGINS, ALL_NODES),
        forms=(WireFormat("k, 0", "int64 [rows of the receiver, C − 1]", "inference"),)),
    MessageSpec(Kind.MASK_SHARE, TO_OWNER, "shares of the mask of the classes of nodes that the receiver named",
        "share", _NAMED, (NAMED,), (CLASSES_ONLY, NAMED_NODES),
        forms=(WireFormat("k, 0", "int64 [named by the receiver, 1]", "prediction"),)),
    MessageSpec(Kind.MASK_SHARE, TO_OWNER, "shares of the mask of the margins of nodes that the receiver named",
        "share", _NAMED, (NAMED, NAMED_MARGINS), (WITH_MARGINS, NAMED_NODES),
        forms=(WireFormat("k, 0", "int64 [named by the receiver, C − 1]", "prediction"),)),
    MessageSpec(Kind.MASK_SHARE, TO_OWNER,
        "shares of the mask of how many validation nodes, or pairs of them, are right", "share", _COUNT, (SCORES,),
        (SCORED,), forms=(WireFormat("k, 0", "int64 [1, 1 or 2]", "evaluation"),)),
    MessageSpec(Kind.MASK_SHARE, TO_HOLDER,
        "shares of the mask of bits that say which two holders put in other edges than each other", "share", _DIFFERS,
        when=(BOTH_ENDS,),
        forms=(WireFormat("k, 0", "int64 [pairs of holders, 1]", "set-up"),)),
    judgement(LABELLED_TO_SERVER, SCORED),
    judgement(REPORTED, SCORED),
)
# fmt: on
