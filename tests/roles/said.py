"""What messages of a set of jobs are said to carry, word by word: together they need every row of the table."""

from __future__ import annotations

from typing import Final

from veilgraph.core.types import SERVER, Kind, PartyId

Message = tuple[PartyId, PartyId, Kind]

RANGE: Final = "shares of the mask of the bit that says whether numbers left their range"
BEHIND: Final = "the checkpoint of all for one that rounds were made without: weights, the best ones and their score"
BALANCED: Final = "; ".join(
    (
        "masked numbers of training nodes, losses, class counts and score histograms",
        "masked numbers of training nodes of each class",
    )
)

SAID: dict[str, dict[Message, str]] = {
    "secure-sum": {
        (SERVER, "A", Kind.HELLO): "facts of the job",
        ("A", "B", Kind.HELLO): "facts of the job",
        ("A", SERVER, Kind.HELLO): "facts of the job",
        ("A", "B", Kind.CONTROL): "best so far? stop?",
        ("A", SERVER, Kind.CONTROL): "best so far? stop?",
        ("A", "B", Kind.KEY): "a fresh public key",
        ("A", "B", Kind.MASKED): "masked parts of h0",
        (SERVER, "B", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver published, in the clear",
                "spread over the label holder's edges",
            )
        ),
        (SERVER, "A", Kind.GRADIENT): "gradient of what the receiver published, in the clear",
        ("A", SERVER, Kind.GRADIENT): "gradient of z_L in the clear; spread over the label holder's edges",
        ("A", "B", Kind.MASKED_GRADIENT): "masked gradients of h0",
        ("A", "B", Kind.BLINDED_IDS): "node ids as curve points under secret keys",
        ("A", SERVER, Kind.ID_TOKENS): "hashes of the node ids under all holders' keys",
        (SERVER, "A", Kind.COMMON_IDS): "the hashes that all holders sent",
        ("A", "B", Kind.ROW_ORDER): "where the common nodes stand in the order of rows",
        ("A", "B", Kind.AUDIT_QUESTION): "random pairs of nodes",
        ("A", SERVER, Kind.AUDIT_QUESTION): "random pairs of nodes",
        ("A", "B", Kind.AUDIT_ANSWER): "how attacks on what the sender saw rank pairs of nodes",
        (SERVER, "A", Kind.AUDIT_ANSWER): "how attacks on what the sender saw rank pairs of nodes",
        (SERVER, "A", Kind.SEAL): "certificate, fresh public key, signature",
        ("A", "B", Kind.SEAL): "certificate, fresh public key, signature",
        ("A", SERVER, Kind.SEAL): "certificate, fresh public key, signature",
    },
    "secure-sum of three, rounds": {
        ("A", SERVER, Kind.MASKED): "masked embeddings; masked degrees",
        ("A", "B", Kind.MASKED): "masked parts of h0",
        ("A", "B", Kind.MASKED_GRADIENT): "masked gradients of h0",
        ("A", SERVER, Kind.MASKED_GRADIENT): "masked gradients of earlier rounds",
    },
    "everything in the clear": {
        (SERVER, "A", Kind.SEED): "the seed of the receiver's own masks",
        ("A", "B", Kind.STATIC_DIFFERENCE): "features minus a one-time mask",
        ("A", "B", Kind.MASKED_OPERAND): "shares of weights and, in training, gradients of h0, minus one-time masks",
        (SERVER, "A", Kind.CORRELATION): "products of masks under a fresh mask",
        ("A", "B", Kind.SHARE): "additive shares of h0",
        ("A", SERVER, Kind.EMBEDDING): "embeddings in the clear; degrees in the clear",
        (SERVER, "A", Kind.COMBINED): "; ".join(
            (
                "output z_L in the clear",
                "which is the combined embedding itself",
                "combined embeddings of earlier rounds in the clear",
            )
        ),
        ("A", SERVER, Kind.GRADIENT): "gradient of z_L in the clear; gradients of earlier rounds in the clear",
        ("A", SERVER, Kind.READY): "that a dealt matrix has been used, where there are many",
    },
    "every step, noised": {
        ("A", SERVER, Kind.MASKED): "masked noisy embeddings",
        (SERVER, "B", Kind.GRADIENT): "gradient of what the receiver published; spread over the label holder's edges",
        (SERVER, "A", Kind.GRADIENT): "gradient of what the receiver published",
        ("A", SERVER, Kind.GRADIENT): "noisy gradient of z_L; spread over the label holder's edges",
        ("A", SERVER, Kind.MASKED_GRADIENT): "masked noisy gradients of earlier rounds",
    },
    "every step, noise made jointly": {
        ("B", SERVER, Kind.MASKED): "masked noisy embeddings, each with a share of the noise",
        ("B", SERVER, Kind.MASKED_GRADIENT): "masked noisy gradients of earlier rounds, each with a share of the noise",
        ("A", SERVER, Kind.GRADIENT): "noisy gradient of z_L; spread over the label holder's edges",
    },
    "labels perturbed": {
        (SERVER, "B", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver published, of perturbed labels",
                "which of its rows are not zero, in the clear",
            )
        ),
        ("A", SERVER, Kind.GRADIENT): "; ".join(
            ("gradient of z_L, of perturbed labels", "which of its rows are not zero, in the clear")
        ),
    },
    "every step, not masked": {
        ("A", SERVER, Kind.EMBEDDING): "noisy embeddings",
        (SERVER, "A", Kind.COMBINED): "; ".join(
            (
                "output z_L of noisy embeddings",
                "which is the combined noisy embedding itself",
                "combined noisy embeddings of earlier rounds",
            )
        ),
        ("A", SERVER, Kind.GRADIENT): "noisy gradient of z_L; noisy gradients of earlier rounds",
    },
    "once, masked": {
        (SERVER, "A", Kind.COMBINED): "the combined release",
    },
    "once, noise made jointly": {
        ("B", SERVER, Kind.MASKED): "masked noisy embeddings, each with a share of the noise",
    },
    "once, own rows, masked": {
        ("B", SERVER, Kind.MASKED): "masked noisy embeddings",
        ("B", "A", Kind.COLUMNS): "the common nodes' features as they are",
    },
    "once, own rows, of two": {
        ("B", SERVER, Kind.EMBEDDING): "noisy embeddings",
        ("B", "A", Kind.COLUMNS): "the common nodes' features as they are",
    },
    "once, without noise": {
        (SERVER, "A", Kind.COMBINED): "the combined release, without noise, in the clear",
    },
    "raw features": {
        ("A", SERVER, Kind.CONTROL): "best so far? stop?",
        ("A", "B", Kind.MASKED): "masked numbers of training nodes, losses, class counts and score histograms",
        ("A", SERVER, Kind.EMBEDDING): "; ".join(
            (
                "local embeddings of every layer in the clear",
                "in the first layer of raw features",
                "the first layer's once a session",
            )
        ),
        (SERVER, "A", Kind.COMBINED): "global embeddings of the receiver's nodes in the clear, of every layer",
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            ("gradient of what the receiver sent, in the clear, zero where another's prevailed",)
        ),
        ("A", SERVER, Kind.GRADIENT): "; ".join(
            (
                "gradient of the last layer's global embeddings of the sender's nodes, in the clear",
                "those of earlier layers",
            )
        ),
        ("A", "B", Kind.MASKED_GRADIENT): "masked gradients of the shared weights, and the loss",
        ("A", "B", Kind.KEY): "a fresh public key",
        ("A", "B", Kind.NODE_KEY): "key of the hashes, seed of the shared weights",
        ("A", "B", Kind.COLUMN_HASHES): "hashes of feature columns with their settings, and of classes",
        ("A", "B", Kind.COLUMN_SUMS): "masked number of rows, sums of columns and of their squares",
    },
    "secure-max of raw features": {
        (SERVER, "A", Kind.SEED): "the seed of the receiver's own masks of bits",
        ("A", SERVER, Kind.MASKED): "; ".join(
            (
                "masked embeddings where they are the largest, zeros elsewhere",
                "of raw features in the first layer",
                "the first layer's once a session",
            )
        ),
        (SERVER, "A", Kind.GRADIENT): "gradient of the maximum at the receiver's nodes, in the clear",
        ("A", "B", Kind.MASKED_BITS): "bits of embeddings and of comparisons, under one-time masks",
        (SERVER, "A", Kind.BIT_CORRELATION): "products of masks of bits under a fresh mask",
        ("A", "B", Kind.WIN_SHARE): "shares of where the receiver attains the maximum",
        (SERVER, "A", Kind.NODE_PLACES): "; ".join(
            ("number of all nodes, and a random place among them for each of the receiver's",)
        ),
    },
    "mean": {
        ("A", "B", Kind.MASKED): "masked numbers of training nodes, losses, class counts and score histograms",
        ("A", SERVER, Kind.EMBEDDING): "; ".join(
            (
                "both parts of the local embeddings of every layer in the clear",
                "degrees in the clear",
            )
        ),
        (SERVER, "A", Kind.GRADIENT): "gradient of what the receiver sent, in the clear; of earlier layers as well",
        ("A", "B", Kind.MASKED_GRADIENT): "masked gradients of the shared weights, and the loss",
        ("A", SERVER, Kind.NODE_LIST): "keyed hashes of the sender's nodes; keyed hashes of its edges",
        (SERVER, "A", Kind.NODE_PLACES): "which of the receiver's edges count",
        ("A", "B", Kind.COLUMN_SUMS): "masked number of rows, sums of columns and of their squares",
    },
    "max, balanced": {
        ("A", "B", Kind.MASKED): BALANCED,
    },
    "max of three, balanced": {
        ("A", "B", Kind.MASKED): BALANCED,
    },
    "perturbed": {
        ("A", "B", Kind.PERTURBED_FEATURES): "every node's features, perturbed by itself, a single time",
    },
    "features": {
        ("B", "A", Kind.PERTURBED_FEATURES): "every node's features, perturbed by itself, a single time",
    },
    "features and labels": {
        ("B", "A", Kind.PERTURBED_LABELS): "; ".join(
            (
                "labels under randomised response, a single time",
                "who has one, and is trained on, in the clear",
            )
        ),
    },
    "sealed, judged": {
        (SERVER, "A", Kind.SEED): "the seed of the receiver's own masks",
        (SERVER, "A", Kind.CORRELATION): "products of masks under fresh masks",
        ("A", SERVER, Kind.READY): "that so much of what was dealt has been used, or a checkpoint passed",
        ("A", "B", Kind.MASKED_WIRE): "secrets, or shares of them, under fresh masks",
        ("A", "B", Kind.MASKED_BITS): "bits of comparisons, and with two holders of truncations, under one-time masks",
        ("A", "B", Kind.PLACEMENT): "orders of edges and rows relative to random ones",
        ("A", "B", Kind.MASKED_ROWS): "shares of masks under further masks",
        ("B", "A", Kind.MASK_SHARE): "; ".join(
            (
                "shares of the mask of the predicted classes",
                "shares of the mask of how many validation nodes are right",
                RANGE,
            )
        ),
        ("A", "B", Kind.CONTROL): "best so far? stop?",
        ("A", SERVER, Kind.CONTROL): "best so far? stop?",
    },
    "sealed, checked, probabilities": {
        (
            SERVER,
            "A",
            Kind.COMMITMENT,
        ): "digests of what is going to be dealt, or the key of a dealing that is not used",
        ("A", "B", Kind.COMMITMENT): "the digest of a dealer's key, and whether a dealing is opened",
        ("A", SERVER, Kind.COMMITMENT): "whether a dealing is opened",
        ("B", "A", Kind.MASK_SHARE): f"shares of the mask of the predicted probabilities; {RANGE}",
    },
    "sealed, named and released": {
        ("B", "A", Kind.MASK_SHARE): "; ".join(
            (
                "shares of the mask of the named nodes' classes",
                "shares of the mask of the weights of the receiver's own columns",
                RANGE,
            )
        ),
        ("A", "B", Kind.MASK_SHARE): f"shares of the mask of the weights of the receiver's own columns; {RANGE}",
    },
    "sealed, named probabilities": {
        ("B", "A", Kind.MASK_SHARE): f"shares of the mask of the named nodes' probabilities; {RANGE}",
    },
    "sealed, noise on edges": {
        ("B", "A", Kind.MASK_SHARE): "; ".join(
            (
                "shares of the mask of the predicted classes",
                "of edges of all holders but the receiver, nothing but what follows from noisy counts",
                RANGE,
            )
        ),
    },
    "values": {
        ("A", "B", Kind.MASKED): "; ".join(
            (
                "masked numbers of targets, sums of these, of errors and of squares",
                "masked sums of training targets",
            )
        ),
        ("A", SERVER, Kind.GRADIENT): "; ".join(
            (
                "gradient of the last layer's global embeddings of the sender's nodes, in the clear, of numbers to "
                "predict",
                "those of earlier layers",
            )
        ),
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver sent, in the clear, zero where another's prevailed, of numbers to "
                "predict",
                "of earlier layers as well",
            )
        ),
    },
    "values within bounds, sum": {
        ("A", "B", Kind.MASKED): "masked numbers of targets, sums of these, of errors and of squares",
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver sent, in the clear, of numbers to predict",
                "of earlier layers as well",
            )
        ),
    },
    "values of three, secure-max": {
        ("A", "B", Kind.MASKED): "; ".join(
            (
                "masked numbers of targets, sums of these, of errors and of squares",
                "masked sums of training targets",
            )
        ),
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of the maximum at the receiver's nodes, in the clear, of numbers to predict",
                "of earlier layers as well",
            )
        ),
    },
    "max, labels perturbed": {
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver sent, zero where another's prevailed, of perturbed labels",
                "which of its rows are not zero",
                "of earlier layers as well",
            )
        ),
        ("A", SERVER, Kind.GRADIENT): "; ".join(
            (
                "gradient of the last layer's global embeddings of the sender's nodes, of perturbed labels",
                "which of its rows are not zero",
                "those of earlier layers",
            )
        ),
    },
    "secure-max, labels perturbed": {
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of the maximum at the receiver's nodes, of perturbed labels",
                "which of its rows are not zero",
                "of earlier layers as well",
            )
        ),
    },
    "mean, labels perturbed": {
        (SERVER, "A", Kind.GRADIENT): "; ".join(
            (
                "gradient of what the receiver sent, of perturbed labels",
                "which of its rows are not zero",
                "of earlier layers as well",
            )
        ),
    },
    "averaging, private": {
        ("A", SERVER, Kind.MASKED): "masked noisy sums of clipped gradients of sampled training nodes, and 1 where "
        "there are labels",
        (SERVER, "A", Kind.AVERAGED): "the weights that follow of noisy gradients alone",
    },
    "averaging of two, private": {
        (SERVER, "A", Kind.AVERAGED): "the weights that follow of noisy gradients alone; that of two holders, noised",
    },
    "averaging of four, private": {
        (SERVER, "A", Kind.AVERAGED): "the weights that follow of noisy gradients alone",
        ("A", "B", Kind.AVERAGED): BEHIND,
    },
    "averaging": {
        ("A", SERVER, Kind.CONTROL): "best so far? stop?; a signature of who is in the sum; "
        "the survivors of sums that were opened in earlier sessions",
        ("A", "B", Kind.KEY): "a public key that the sender's signatures are checked with",
        ("A", SERVER, Kind.KEY): "public keys of a sum, a commitment to the own mask, signed",
        (SERVER, "A", Kind.KEY): "those of all holders",
        ("A", SERVER, Kind.MASK_SHARE): "; ".join(
            (
                "sealed shares of the sender's key of masks and own mask",
                "one share of every holder's key of masks or own mask",
            )
        ),
        (SERVER, "A", Kind.MASK_SHARE): "what others sealed for the receiver",
        (SERVER, "A", Kind.CONTROL): "who is in the sum, and the holders' signatures of that",
        ("A", SERVER, Kind.MASKED): "; ".join(
            (
                "masked changes of weights, loss and number of training nodes",
                "masked losses, class counts and score histograms",
            )
        ),
        (SERVER, "A", Kind.AVERAGED): "; ".join(
            (
                "the weights that follow, and the mean loss",
                "summed losses, class counts and score histograms",
            )
        ),
        ("A", "B", Kind.AVERAGED): BEHIND,
        ("A", "B", Kind.COLUMN_HASHES): "hashes of feature columns with their settings, and of classes",
        ("A", "B", Kind.COLUMN_SUMS): "masked number of rows, sums of columns and of their squares",
    },
    "averaging, values": {
        ("A", SERVER, Kind.MASKED): "; ".join(
            (
                "masked changes of weights, loss and number of training examples",
                "masked losses and what the task counts",
                "masked sums of training targets",
            )
        ),
        (SERVER, "A", Kind.AVERAGED): "; ".join(
            (
                "the weights that follow, and the mean loss",
                "summed losses and what the task counts",
                "sums of training targets",
            )
        ),
    },
    "averaging, balanced": {
        ("A", SERVER, Kind.MASKED): "; ".join(
            (
                "masked changes of weights, loss and number of training nodes",
                "masked losses, class counts and score histograms",
                "masked numbers of training nodes of each class",
            )
        ),
        (SERVER, "A", Kind.AVERAGED): "; ".join(
            (
                "the weights that follow, and the mean loss",
                "summed losses, class counts and score histograms",
                "how many training nodes each class has",
            )
        ),
        ("A", "B", Kind.AVERAGED): BEHIND,
    },
    "averaging, graphs balanced": {
        ("A", SERVER, Kind.MASKED): "; ".join(
            (
                "masked numbers of training graphs of each class",
                "masked changes of weights, loss and number of training examples",
                "masked losses and what the task counts",
            )
        ),
        (SERVER, "A", Kind.AVERAGED): "; ".join(
            (
                "how many training graphs each class has",
                "the weights that follow, and the mean loss",
                "summed losses and what the task counts",
            )
        ),
        ("A", "B", Kind.AVERAGED): BEHIND,
    },
    "averaging, links": {
        (SERVER, "A", Kind.AVERAGED): "the weights that follow, and the mean loss; summed losses and what the task "
        "counts",
    },
    "averaging of two": {
        (SERVER, "A", Kind.AVERAGED): "; ".join(
            (
                "the weights that follow, and the mean loss",
                "summed losses, class counts and score histograms",
                "that of two holders",
            )
        ),
        ("A", "B", Kind.COLUMN_SUMS): "masked number of rows, sums of columns and of their squares",
    },
}
"""Job of ``test_disclosures`` → sender, receiver and kind → the words."""
