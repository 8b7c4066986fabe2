"""What every message of docs/protocol.md carries: a row for every kind and direction, and for what changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from veilgraph.core.revelations import Revelation
from veilgraph.core.types import Kind

Protection = Literal["none", "share", "mask", "noise", "blinding", "random", "public"]
"""Against the receiver: nothing, the values are data-dependent and in the clear; an additive share, uniform by itself;
a uniform mask unknown to the receiver; differentially private noise, as strong as the ε says (never ε = ∞); secret keys
on curve points or in hashes; no data went in; facts that are public."""

Direction = Literal["holder to holder", "holder to server", "server to holder"]


@dataclass(frozen=True)
class Row:
    """What messages of one kind and direction carry in jobs of which all facts of ``when`` (``facts_of``) hold."""

    kind: Kind
    direction: Direction
    what: str
    protection: Protection
    why: str
    reveals: tuple[Revelation, ...] = ()
    when: tuple[str, ...] = ()


_TO_HOLDER: Final = "holder to holder"
_TO_SERVER: Final = "holder to server"
_FROM_SERVER: Final = "server to holder"

_HELLO: Final = (
    "Version, hashes of settings and alignment, number of common nodes, number and precision of feature columns where "
    "the method needs them, checkpoints held and whether they may be replaced, training steps that the privacy budget "
    "allows, number of the release held and whether the data have changed since, the reason of a refusal, whether a "
    "person is still to approve, and before an alignment the number of the holder's ids; how long the sender's records "
    "are, their hashes under a secret salt, and signatures."
)
_CONTROL: Final = "In the clear: tells whether the validation scores rose, not by how much."
_OPENED: Final = (
    "Uniform by itself: the pairwise masks cancel only in the sum over all holders, which the receiver opens."
)
_EXACTLY: Final = "Of two holders each subtracts its own part and has the other's exactly: masks hide nothing from it."
_DEALT: Final = "Uniform for the receiver; the server, which dealt the mask, must not get it."
_TRAINING: Final = "Not protected: the receiver can infer training nodes and which of them share a class."
_SPREAD: Final = "Non-zero rows tell of the label holder's edges around the training nodes."
_NOISED: Final = (
    "Clipped, paid for in the sender's ledger, and noised in all rows: ε bounds what the receiver can infer from it."
)
_NOISED_SUM: Final = (
    "Clipped, paid for, noised and then masked: the receiver opens the sum over all that publish, noise and all."
)
_AFTERWARDS: Final = "Computed from noisy releases alone, which adds nothing to any holder's ε."
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
_PERTURBED: Final = (
    "Local differential privacy, paid for in the sender's ledger: ε bounds what anybody can infer from it of a node's "
    "own value, whatever else is known and computed afterwards."
)
_SEAL: Final = "Says who the sender is and nothing of its data; the secret halves of the keys stay at the sender."
_BITS: Final = "Uniform for the receiver; the server, which dealt the masks, must not get it."

_ASKED: Final = "Drawn from a secret of the sender's, and from nothing of its data."
_RANKED: Final = (
    "Every party allows it: the order follows from messages that the sender was meant to get, not from its own data; "
    "whether it is right, the receiver alone knows."
)

# One row, few lines: a table is read across.
# fmt: off
TABLE: Final = (
    Row(Kind.HELLO, _TO_HOLDER, "facts of the job", "public", _HELLO),
    Row(Kind.HELLO, _TO_SERVER, "facts of the job", "public", _HELLO),
    Row(Kind.HELLO, _FROM_SERVER, "facts of the job", "public", _HELLO),
    Row(Kind.CONTROL, _TO_HOLDER, "best so far? stop?", "none", _CONTROL, when=("from label holder", "judged")),
    Row(Kind.CONTROL, _TO_SERVER, "best so far? stop?", "none", _CONTROL, when=("from label holder", "judged")),
    # Alignment and sealing
    Row(Kind.SEAL, _TO_HOLDER, "certificate, fresh public key, signature", "public", _SEAL),
    Row(Kind.SEAL, _TO_SERVER, "certificate, fresh public key, signature", "public", _SEAL),
    Row(Kind.SEAL, _FROM_SERVER, "certificate, fresh public key, signature", "public", _SEAL),
    Row(Kind.BLINDED_IDS, _TO_HOLDER, "node ids as curve points under secret keys", "blinding",
        "Without the keys the receiver can neither read nor test an id (decisional Diffie-Hellman); it learns how many "
        "ids a holder has.", when=("aligned",)),
    Row(Kind.ID_TOKENS, _TO_SERVER, "hashes of the node ids under all holders' keys", "blinding",
        "No party can compute one alone; the server, which must not collude with a holder, learns how many ids each "
        "holder has and how many they have in common.", when=("aligned",)),
    Row(Kind.COMMON_IDS, _FROM_SERVER, "the hashes that all holders sent", "none",
        "The purpose of alignment: the receiver learns which of its own ids all other holders have.",
        when=("aligned",)),
    # Audits across organisations
    Row(Kind.AUDIT_QUESTION, _TO_HOLDER, "random pairs of nodes", "random", _ASKED),
    Row(Kind.AUDIT_QUESTION, _TO_SERVER, "random pairs of nodes", "random", _ASKED),
    Row(Kind.AUDIT_ANSWER, _TO_HOLDER, "how attacks on what the sender saw rank pairs of nodes", "none", _RANKED),
    Row(Kind.AUDIT_ANSWER, _FROM_SERVER, "how attacks on what the sender saw rank pairs of nodes", "none", _RANKED),
    # Initial embeddings
    Row(Kind.KEY, _TO_HOLDER, "a fresh public key", "random",
        "Made of random numbers; its secret half stays at the sender.", when=("paired",)),
    Row(Kind.SEED, _FROM_SERVER, "the seed of the receiver's own masks", "random",
        "Made of random numbers; nobody but the server and the receiver may know it.", when=("collaborative",)),
    Row(Kind.CORRELATION, _FROM_SERVER, "products of masks under a fresh mask", "random",
        "Computed from random numbers alone.", when=("collaborative",)),
    Row(Kind.READY, _TO_SERVER, "that a dealt matrix has been used, where there are many", "none",
        "One byte, always the same; a large graph's rows are multiplied in blocks.", when=("collaborative",)),
    Row(Kind.STATIC_DIFFERENCE, _TO_HOLDER, "features minus a one-time mask", "mask", _DEALT, when=("collaborative",)),
    Row(Kind.MASKED_OPERAND, _TO_HOLDER, "shares of weights and, in training, gradients of h0, minus one-time masks",
        "mask", _DEALT, when=("collaborative",)),
    Row(Kind.SHARE, _TO_HOLDER, "additive shares of h0", "share",
        "Uniform by itself; the sum over all holders is h0, which every holder is meant to learn.",
        ("initial-embeddings",), ("collaborative",)),
    Row(Kind.MASKED, _TO_HOLDER, "masked parts of h0", "mask", _OPENED, ("initial-embeddings",),
        ("secure-sum", "more holders")),
    Row(Kind.MASKED, _TO_HOLDER, "masked parts of h0", "none", _EXACTLY,
        ("initial-embeddings", "single-initial-embeddings"), ("secure-sum", "two holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of h0", "mask", _OPENED, ("initial-gradients",),
        ("secure-sum", "more holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of h0", "none", _EXACTLY,
        ("initial-gradients", "single-initial-embeddings"), ("secure-sum", "two holders")),
    # COMBINE
    Row(Kind.MASKED, _TO_SERVER, "masked embeddings", "mask", _OPENED, ("embedding-sums",),
        ("masked", "bare", "from publisher")),
    Row(Kind.MASKED, _TO_SERVER, "masked noisy embeddings", "mask", _NOISED_SUM, ("embedding-sums",),
        ("masked", "noised", "from publisher")),
    Row(Kind.MASKED, _TO_SERVER, "masked degrees", "mask", _OPENED, ("pooled-degrees",), ("masked", "degree-weighted")),
    Row(Kind.EMBEDDING, _TO_SERVER, "embeddings in the clear", "none",
        "Not protected: the server has the sender's embedding of every node.", ("embedding-sums", "single-embeddings"),
        ("unmasked", "bare", "from publisher")),
    Row(Kind.EMBEDDING, _TO_SERVER, "noisy embeddings", "noise", _NOISED, ("embedding-sums", "single-embeddings"),
        ("unmasked", "noised", "from publisher")),
    Row(Kind.EMBEDDING, _TO_SERVER, "degrees in the clear", "none",
        "Not protected: the server has the sender's degree of every node, exactly.",
        ("pooled-degrees", "single-degrees"), ("unmasked", "degree-weighted")),
    Row(Kind.COMBINED, _FROM_SERVER, "output z_L in the clear", "none",
        "The label holder needs it for loss and predictions; it tells of all holders' features and edges.",
        ("output-embeddings",), ("to label holder", "every step", "bare")),
    Row(Kind.COMBINED, _FROM_SERVER, "output z_L of noisy embeddings", "noise", _AFTERWARDS,
        ("output-embeddings",), ("to label holder", "every step", "noised")),
    Row(Kind.COMBINED, _FROM_SERVER, "which is the combined embedding itself", "none",
        "No layer of the server has changed it.", ("combined-as-output",),
        ("to label holder", "every step", "no layers", "bare")),
    Row(Kind.COMBINED, _FROM_SERVER, "which is the combined noisy embedding itself", "noise",
        "No layer of the server has changed it.", ("combined-as-output",),
        ("to label holder", "every step", "no layers", "noised")),
    Row(Kind.COMBINED, _FROM_SERVER, "combined embeddings of earlier rounds in the clear", "none",
        "Not protected: the receiver can infer other holders' edges from them.", ("combined-embeddings",),
        ("more rounds", "bare")),
    Row(Kind.COMBINED, _FROM_SERVER, "combined noisy embeddings of earlier rounds", "noise", _AFTERWARDS,
        ("combined-embeddings",), ("more rounds", "noised")),
    Row(Kind.COMBINED, _FROM_SERVER, "the combined release, without noise, in the clear", "none",
        "The label holder trains on it; it tells of the senders' features and edges.",
        ("output-embeddings", "combined-as-output"), ("to label holder", "once", "bare")),
    Row(Kind.COMBINED, _FROM_SERVER, "the combined release", "noise", _AFTERWARDS,
        ("output-embeddings", "combined-as-output"), ("to label holder", "once", "noised")),
    # Gradients
    Row(Kind.GRADIENT, _TO_SERVER, "gradient of z_L in the clear", "none", _TRAINING, ("training-rows",),
        ("from label holder", "every step", "bare")),
    Row(Kind.GRADIENT, _TO_SERVER, "noisy gradient of z_L", "noise", _NOISED, ("training-rows",),
        ("from label holder", "every step", "noised")),
    Row(Kind.GRADIENT, _TO_SERVER, "spread over the label holder's edges", "none", _SPREAD, ("label-holder-edges",),
        ("from label holder", "every step", "logit hops", "bare")),
    Row(Kind.GRADIENT, _TO_SERVER, "spread over the label holder's edges", "noise", _NOISED, ("label-holder-edges",),
        ("from label holder", "every step", "logit hops", "noised")),
    Row(Kind.GRADIENT, _TO_SERVER, "gradients of earlier rounds in the clear", "none",
        "Not protected: the server has the sender's own gradients of the combined embeddings.", ("single-embeddings",),
        ("more rounds", "unmasked", "bare")),
    Row(Kind.GRADIENT, _TO_SERVER, "noisy gradients of earlier rounds", "noise", _NOISED, ("single-embeddings",),
        ("more rounds", "unmasked", "noised")),
    Row(Kind.MASKED_GRADIENT, _TO_SERVER, "masked gradients of earlier rounds", "mask", _OPENED,
        ("combined-embeddings",), ("more rounds", "masked", "bare")),
    Row(Kind.MASKED_GRADIENT, _TO_SERVER, "masked noisy gradients of earlier rounds", "mask", _NOISED_SUM,
        ("combined-embeddings",), ("more rounds", "masked", "noised")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published, in the clear", "none",
        "It comes from the receiver's own labels.", when=("to label holder", "every step", "bare")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published", "noise", _AFTERWARDS,
        when=("to label holder", "every step", "noised")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published, in the clear", "none", _TRAINING,
        ("training-rows",), ("to another", "every step", "bare")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver published", "noise", _AFTERWARDS,
        ("training-rows",), ("to another", "every step", "noised")),
    Row(Kind.GRADIENT, _FROM_SERVER, "spread over the label holder's edges", "none", _SPREAD, ("label-holder-edges",),
        ("to another", "every step", "logit hops", "bare")),
    Row(Kind.GRADIENT, _FROM_SERVER, "spread over the label holder's edges", "noise", _AFTERWARDS,
        ("label-holder-edges",), ("to another", "every step", "logit hops", "noised")),
    # Horizontal
    Row(Kind.COLUMN_HASHES, _TO_HOLDER, "hashes of feature columns with their settings, and of classes", "none",
        "No key: the receiver, which should have the same, reads no name but can test one that it guesses.",
        when=("horizontal",)),
    Row(Kind.COLUMN_SUMS, _TO_HOLDER, "masked number of rows, sums of columns and of their squares", "mask", _OPENED,
        ("column-statistics",), ("horizontal", "more holders")),
    Row(Kind.COLUMN_SUMS, _TO_HOLDER, "masked number of rows, sums of columns and of their squares", "none", _EXACTLY,
        ("column-statistics",), ("horizontal", "two holders")),
    Row(Kind.CONTROL, _TO_SERVER, "best so far? stop?", "none", _CONTROL, when=("from reporter", "judged")),
    Row(Kind.NODE_KEY, _TO_HOLDER, "key of the hashes, seed of the shared weights", "random",
        "No data went in; nobody but the holders may know the key.", when=("horizontal",)),
    Row(Kind.NODE_LIST, _TO_SERVER, "keyed hashes of the sender's nodes", "blinding", _HASHED, ("node-lists",),
        ("horizontal",)),
    Row(Kind.NODE_LIST, _TO_SERVER, "keyed hashes of its edges", "blinding", _HASHED, ("edge-lists",), ("edge lists",)),
    Row(Kind.NODE_PLACES, _FROM_SERVER, "number of all nodes, and a random place among them for each of the receiver's",
        "public", "The order is random and new; it tells the receiver nothing but the number.", when=("secure-max",)),
    Row(Kind.NODE_PLACES, _FROM_SERVER, "which of the receiver's edges count", "none",
        "Those that do not are an earlier holder's too.", ("edge-lists",), ("edge lists",)),
    Row(Kind.SEED, _FROM_SERVER, "the seed of the receiver's own masks of bits", "random",
        "Made of random numbers; nobody but the server and the receiver may know it.", when=("secure-max",)),
    Row(Kind.BIT_CORRELATION, _FROM_SERVER, "products of masks of bits under a fresh mask", "random",
        "Computed from random numbers alone.", when=("secure-max",)),
    Row(Kind.MASKED_BITS, _TO_HOLDER, "bits of embeddings and of comparisons, under one-time masks", "mask", _BITS,
        when=("secure-max",)),
    Row(Kind.WIN_SHARE, _TO_HOLDER, "shares of where the receiver attains the maximum", "share",
        "Uniform by itself; the sum tells the receiver where its own embedding is the largest, which it is to learn.",
        ("global-embeddings",), ("secure-max",)),
    Row(Kind.MASKED, _TO_SERVER, "masked embeddings where they are the largest, zeros elsewhere", "mask", _OPENED,
        ("embedding-maxima",), ("secure-max",)),
    Row(Kind.MASKED, _TO_SERVER, "of raw features in the first layer", "mask", _RAW, ("raw-features",),
        ("secure-max", "raw features")),
    Row(Kind.MASKED, _TO_SERVER, "the first layer's once a session", "mask", _FIXED,
        when=("secure-max", "fixed first layer")),
    Row(Kind.EMBEDDING, _TO_SERVER, "local embeddings of every layer in the clear", "none", _SUMMED,
        ("embedding-maxima", "single-embeddings"), ("each in the clear", "pooled")),
    Row(Kind.EMBEDDING, _TO_SERVER, "both parts of the local embeddings of every layer in the clear", "none", _SUMMED,
        ("embedding-sums", "single-embeddings"), ("added up",)),
    Row(Kind.EMBEDDING, _TO_SERVER, "in the first layer of raw features", "none", _RAW, ("raw-features",),
        ("each in the clear", "raw features")),
    Row(Kind.EMBEDDING, _TO_SERVER, "the first layer's once a session", "none", _FIXED,
        when=("each in the clear", "fixed first layer")),
    Row(Kind.EMBEDDING, _TO_SERVER, "degrees in the clear", "none",
        "Not protected: the server has the sender's degree of every node that the sender knows, exactly.",
        ("pooled-degrees", "single-degrees"), ("degrees",)),
    Row(Kind.COMBINED, _FROM_SERVER, "global embeddings of the receiver's nodes in the clear, of every layer", "none",
        "The receiver needs them for the next layer and its loss; they tell of other holders' features and edges at "
        "its nodes, as it has all weights but the server's.", ("global-embeddings",), ("horizontal",)),
    Row(Kind.GRADIENT, _TO_SERVER, "gradient of the last layer's global embeddings of the sender's nodes, in the clear",
        "none", "Not protected: the non-zero rows are the sender's training nodes; rows of a class are alike.",
        ("training-rows",), ("horizontal",)),
    Row(Kind.GRADIENT, _TO_SERVER, "those of earlier layers", "none",
        "Spread over the sender's edges, those around training nodes show.", ("edge-gradients",), ("more layers",)),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver sent, in the clear, zero where another's prevailed",
        "none", _LABELS,
        ("training-rows",), ("each in the clear", "pooled")),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of the maximum at the receiver's nodes, in the clear", "none",
        _LABELS,
        ("training-rows",), ("secure-max",)),
    Row(Kind.GRADIENT, _FROM_SERVER, "gradient of what the receiver sent, in the clear", "none",
        _LABELS,
        ("training-rows",), ("added up",)),
    Row(Kind.GRADIENT, _FROM_SERVER, "of earlier layers as well", "none",
        "Spread over all holders' edges, those around training nodes show.", ("edge-gradients",),
        ("more layers back",)),
    Row(Kind.MASKED, _TO_HOLDER, "masked numbers of training nodes, losses and class counts", "mask", _OPENED,
        ("label-tallies",), ("horizontal", "more holders")),
    Row(Kind.MASKED, _TO_HOLDER, "masked numbers of training nodes, losses and class counts", "none", _EXACTLY,
        ("label-tallies", "single-summands"), ("horizontal", "two holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of the shared weights, and the loss", "mask", _OPENED,
        ("weight-gradients",), ("horizontal", "more holders")),
    Row(Kind.MASKED_GRADIENT, _TO_HOLDER, "masked gradients of the shared weights, and the loss", "none", _EXACTLY,
        ("weight-gradients", "single-summands"), ("horizontal", "two holders")),
    Row(Kind.PERTURBED_FEATURES, _TO_HOLDER, "every node's features, perturbed by itself, a single time", "noise",
        _PERTURBED, ("perturbed-features",), ("perturbed",)),
    Row(Kind.PERTURBED_LABELS, _TO_HOLDER, "labels under randomised response, a single time; who has one, and is "
        "trained on, in the clear", "noise", _PERTURBED, ("perturbed-labels",), ("private labels",)),
)
# fmt: on
"""What messages carry. A message is of a job when at least one row fits; what all that fit say is said."""
