"""Collusion of the server with one holder, performed as docs/explanation/threat-model.md describes it.

The server, as dealer, has every holder's seed; the colluding holder brings the messages that it received.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tests.mpc.sessions import Embedded, embed_session, fixed_secrets
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.mpc.mask import PairwiseMasks, ring_sum
from veilgraph.mpc.product import Direction, operand_mask_name, row_blocks, static_mask_name
from veilgraph.mpc.ring import rounded
from veilgraph.paradigms.vertical.network import InitialSettings

NODES, DIM, STEPS, FEATURE_BITS = 30, 3, 2, 4
SETTINGS = InitialSettings(learning_rate=1.0, momentum=0.0)


@dataclass(frozen=True)
class Session:
    """A finished session of ``collaborative``, and what it hid."""

    names: list[PartyId]
    matrices: dict[PartyId, Tensor]
    results: dict[PartyId, Embedded]
    block_bytes: int

    @property
    def blocks(self) -> list[slice]:
        """As the parties divide the rows."""
        columns = {name: matrix.shape[1] for name, matrix in self.matrices.items()}
        return row_blocks(NODES, columns, DIM, self.block_bytes)

    def gradient(self, party: PartyId, step: int) -> Tensor:
        """What the holder encoded, in the ring."""
        return (true_gradient(party, step) * 2.0**SETTINGS.gradient_bits).round().to(torch.int64)


def true_gradient(party: PartyId, step: int) -> Tensor:
    """Rows of zeros but for a few, as of a holder's edges around training nodes."""
    generator = torch.Generator().manual_seed(sum(map(ord, party)) + step)
    rows = torch.rand(NODES, 1, generator=generator) < 0.3
    return torch.randn(NODES, DIM, dtype=torch.float64, generator=generator) * rows


def session(holders: int, block_bytes: int = 1 << 25) -> Session:
    generator = torch.Generator().manual_seed(holders)
    names = [chr(ord("A") + index) for index in range(holders)]
    matrices = {name: torch.rand(NODES, 5 + index, generator=generator) for index, name in enumerate(names)}
    results = embed_session(
        SETTINGS,
        matrices,
        dim=DIM,
        steps=STEPS,
        bits=FEATURE_BITS,
        gradient=lambda party, step, _: true_gradient(party, step),
        block_bytes=block_bytes,
    )
    return Session(names, matrices, results, block_bytes)


def dealer_seeds(names: list[PartyId]) -> dict[PartyId, bytes]:
    """What the server drew, as ``embed_session`` has it draw."""
    secrets = fixed_secrets(0, SERVER)
    return {name: secrets(SEED_BYTES) for name in names}


def received(found: Session, colluder: PartyId, sender: PartyId, tag: Tag) -> Tensor:
    """What the colluding holder got."""
    view = found.results[colluder].view
    return next(m.tensor for m in view if (m.sender, m.receiver, m.tag) == (sender, colluder, tag))


def gradient_behind(found: Session, colluder: PartyId, victim: PartyId, step: int) -> Tensor:
    """The attack: F_j + V_j, block by block."""
    seed, parts = dealer_seeds(found.names)[victim], []
    for block, rows in enumerate(found.blocks):
        name = operand_mask_name(colluder, Direction.BACKWARD, step, block)
        tag = Tag(Kind.MASKED_OPERAND, step, 2 * block + Direction.BACKWARD)
        parts.append(received(found, colluder, victim, tag) + expand(seed, name, (rows.stop - rows.start, DIM)))
    return torch.cat(parts)


@pytest.mark.parametrize("holders", [2, 3])
def test_the_server_and_one_holder_have_all_features(holders: int) -> None:
    found = session(holders)
    for victim in found.names[1:]:
        mask = expand(dealer_seeds(found.names)[victim], static_mask_name(), tuple(found.matrices[victim].shape))
        encoded = received(found, "A", victim, Tag(Kind.STATIC_DIFFERENCE)) + mask
        features = encoded.to(torch.float64) * 2.0**-FEATURE_BITS
        assert torch.equal(features, rounded(found.matrices[victim], FEATURE_BITS))


@pytest.mark.parametrize("block_bytes", [1 << 25, 8 * 6 * 7], ids=["one block", "blocks"])
def test_the_server_and_one_of_two_holders_have_the_others_gradient(block_bytes: int) -> None:
    found = session(2, block_bytes)
    assert len(found.blocks) == (1 if block_bytes == 1 << 25 else 5)
    for step in range(STEPS):
        assert torch.equal(gradient_behind(found, "A", "B", step), found.gradient("B", step))


@pytest.mark.cases(2)
@pytest.mark.parametrize("block_bytes", [1 << 25, 8 * 6 * 8], ids=["one block", "blocks"])
@pytest.mark.parametrize("holders", [3, 4])
def test_the_server_and_one_of_more_holders_have_the_sum_of_the_others_and_no_single_gradient(
    holders: int, block_bytes: int
) -> None:
    """The colluder can take its own end of the pairwise masks off; those between the others stay."""
    found = session(holders, block_bytes)
    for step in range(STEPS):
        seen = {victim: gradient_behind(found, "A", victim, step) for victim in found.names[1:]}
        own = own_masks(found, step)
        opened = {victim: each + own[victim] for victim, each in seen.items()}
        for victim, each in opened.items():
            difference = each - found.gradient(victim, step)
            assert int((difference == 0).sum()) == 0
            rest = ~found.gradient(victim, step).any(dim=1)
            assert int((each[rest] == 0).sum()) == 0, "rows without a gradient must not show"
            assert abs(float((each[rest] < 0).double().mean()) - 0.5) < 0.2
        total = ring_sum([found.gradient(victim, step) for victim in found.names[1:]])
        assert torch.equal(ring_sum(list(opened.values())), total)


@pytest.mark.parametrize("block_bytes", [1 << 25, 8 * 6 * 8], ids=["one block", "blocks"])
def test_no_step_and_no_block_has_the_pairwise_mask_of_another(block_bytes: int) -> None:
    """Or differences of messages would be differences of gradients."""
    found = session(3, block_bytes)
    left = []
    for step in range(STEPS):
        opened = gradient_behind(found, "A", "B", step) + own_masks(found, step)["B"]
        whole = [rows for rows in found.blocks if rows.stop - rows.start == found.blocks[0].stop]
        left += [(opened - found.gradient("B", step))[rows] for rows in whole]
    assert len(left) == STEPS * (1 if block_bytes == 1 << 25 else 5)
    for index, one in enumerate(left):
        for other in left[index + 1 :]:
            assert int((one == other).sum()) == 0


def own_masks(found: Session, step: int) -> dict[PartyId, Tensor]:
    """Victim → what A's key with it adds to the victim's messages, so that adding this takes it off."""
    session_masks = masks_of(found, "A")
    ends = {victim: PairwiseMasks("A", {victim: key}, bytes(32)) for victim, key in session_masks.items()}
    return {
        victim: torch.cat(
            [
                end.mask(f"gradient of h0/{block}", step, (rows.stop - rows.start, DIM))
                for block, rows in enumerate(found.blocks)
            ]
        )
        for victim, end in ends.items()
    }


def masks_of(found: Session, party: PartyId) -> dict[PartyId, bytes]:
    """The keys that the colluding holder shares with each other holder."""
    return dict(found.results[party].embedding._session.masks._keys)  # type: ignore[attr-defined]


def test_without_pairwise_masks_every_single_gradient_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack as such works: it found them where ``F_j`` was g_j − V_j alone."""
    honest = PairwiseMasks.mask

    def mask(self: PairwiseMasks, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        whole = honest(self, purpose, step, shape)
        return torch.zeros_like(whole) if purpose.startswith("gradient of h0") else whole

    monkeypatch.setattr(PairwiseMasks, "mask", mask)
    found = session(3)
    for victim in ("B", "C"):
        for step in range(STEPS):
            assert torch.equal(gradient_behind(found, "A", victim, step), found.gradient(victim, step))


def test_what_a_holder_sends_is_still_one_message_for_all() -> None:
    """No byte more than before: the blinded gradient is the same for every owner."""
    found = session(4)
    tag = Tag(Kind.MASKED_OPERAND, 1, Direction.BACKWARD)
    sent = {receiver: received(found, receiver, "D", tag) for receiver in ("A", "B", "C")}
    assert torch.equal(sent["A"], sent["B"])
    assert torch.equal(sent["A"], sent["C"])
