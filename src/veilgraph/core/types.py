"""Party names, message tags and the ``Link`` seam that every role speaks through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:  # so that what only needs names starts quickly
    from torch import Tensor

PartyId = str
"""Name of a party, unique in a job. Data holders choose theirs; the server's is ``SERVER``."""

SERVER: Final[PartyId] = "server"
NOBODY: Final[PartyId] = ""
"""In place of a party."""

MASKS: Final = ("train_mask", "val_mask", "test_mask")
"""Of a graph: which nodes are trained with, validated with and tested on."""


class Kind(IntEnum):
    """What a message carries. The number is its code on the wire.

    ``docs/explanation/protocol.md`` says for each kind who sends it to whom and why it may leave the sender.
    """

    HELLO = 1
    """Public facts of the job before work: protocol version, job hash, node count."""
    CONTROL = 2
    """Progress of the job: stop or go on, whether the epoch was the best so far."""
    KEY = 3
    """An ephemeral public key, or several."""
    SEED = 4
    """32 bytes from which dealer and holder expand the same masks."""
    STATIC_DIFFERENCE = 5
    """E = A − U: a private static matrix under a one-time mask."""
    MASKED_OPERAND = 6
    """F = B − V: a private changing matrix under a mask used once."""
    CORRELATION = 7
    """Z_i = U·ΣV − ΣZ_j: the dealer's half of a product of masks."""
    SHARE = 8
    """A uniformly random additive share, sent to be opened."""
    MASKED = 9
    """A fixed-point matrix under pairwise masks that cancel only in the sum over all holders."""
    EMBEDDING = 10
    """A local embedding in the clear (combine strategies that cannot be, or are asked not to be, masked)."""
    COMBINED = 11
    """The server's combined embedding, sent back for the next exchange round, or z_L for the label holder."""
    GRADIENT = 12
    """The gradient of something the receiver sent before."""
    MASKED_GRADIENT = 13
    """A gradient in fixed point under pairwise masks that cancel only in the sum over all holders."""
    BLINDED_IDS = 14
    """Node ids as curve points under the secret keys of the holders they have passed."""
    ID_TOKENS = 15
    """Node ids under all holders' keys: nobody can compute one alone."""
    COMMON_IDS = 16
    """The tokens that every holder sent."""
    SEAL = 17
    """Certificate and signed ephemeral key with which two parties agree on keys, where whole messages are sealed."""
    MASKED_BITS = 18
    """E = X ⊕ A: shares of the factors of a product of bits, under one-time masks."""
    BIT_CORRELATION = 19
    """C: the dealer's part of the products of such masks, under fresh masks."""
    WIN_SHARE = 20
    """A uniformly random XOR share of where the receiver attains the maximum, opened to it."""
    NODE_KEY = 21
    """What the holders share and the server must not know: the key of node hashes, and the seed of their weights."""
    NODE_LIST = 22
    """Keyed hashes of the nodes that a holder knows, in the order of its rows; or of its edges."""
    NODE_PLACES = 23
    """Where a holder's rows stand among all nodes, and how many there are; or which of its edges count."""
    COLUMN_HASHES = 24
    """Hashes of the sender's feature columns with their settings, and of its classes, to be compared."""
    COLUMN_SUMS = 25
    """Sums over the rows of the sender's table, under pairwise masks that cancel only in the sum over all holders."""
    PERTURBED_FEATURES = 26
    """Features that every node perturbed by itself (local differential privacy)."""
    PERTURBED_LABELS = 27
    """Labels under randomised response, and which split their nodes are in."""
    READY = 28
    """The sender has used a matrix that was dealt to it: the dealer may send it one more."""
    AUDIT_QUESTION = 29
    """Pairs of nodes that a holder has drawn at random, for attacks on itself to rank."""
    AUDIT_ANSWER = 30
    """The order in which attacks on what the sender has seen rank what it was asked."""
    MASKED_WIRE = 31
    """What the holders of a sealed job open: a secret under a mask that the dealer knows, or a summand of that."""
    PLACEMENT = 32
    """Where a holder's edges, or the rows that it chooses, are relative to a random order that its receiver lacks."""
    MASKED_ROWS = 33
    """Rows of masks under further masks, in an order that the receiver turns into that of its edges."""
    MASK_SHARE = 34
    """A holder's share of the mask of what the receiver is to learn."""
    COMMITMENT = 35
    """What a dealer commits to before it deals: digests, whether they are opened, and the key that opens them."""
    AVERAGED = 36
    """What the server has made of sums over the holders: the weights that all have, or how well these do."""
    ROW_ORDER = 37
    """Where the common nodes, as an alignment lists them, stand in the order of rows."""
    POSITIONS = 38
    """Positions in an order that only the sender knows, of which the receiver is to send its shares."""
    SIGNATURE = 39
    """The sender's signature of the message before it; the first is the key of a session's signatures."""


@dataclass(frozen=True, slots=True)
class Tag:
    """Identifies one message between two parties: a tag is never used twice in one direction.

    ``step`` counts, by kind, the passes of the session, the initial embeddings, or the epochs
    (docs/explanation/protocol.md); ``round`` counts the exchanges of one kind within a step.
    """

    kind: Kind
    step: int = 0
    round: int = 0

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}/step {self.step}/round {self.round}"


class Link(Protocol):
    """One party's connection to all others: ordered, reliable, tagged. Roles know nothing else of the wire."""

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Hands ``tensor`` over for ``to``; waits where that has no room. The caller never changes it afterwards.

        Raises ``PeerFailed``: the receiver is gone.
        """

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits for the message of ``sender`` that carries ``tag``.

        Raises ``LinkTimeout``: it did not come in time; ``PeerFailed``: the sender stopped; ``ProtocolError``: the
        sender used the tag twice or sent something that cannot be decoded.
        """

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Whether, within ``timeout_s`` seconds, ``receive`` would return or fail at once; takes nothing."""

    def expect(self, unread_bytes: int) -> None:
        """Set how many bytes of one sender may wait for ``receive`` from now on; see ``Mailbox``."""

    def close(self) -> None:
        """Ends the connection; messages not yet received are dropped."""
