"""Double entry: an edge between nodes of two holders is put in by both, and must be the same.

With secret numbers s and r of every node, s_i·A_out·r_j, as holder i has its edges to nodes of j, must be r_j·A_in·s_i,
as j has them. Nobody knows s and r, which are sums of what every holder draws, so that whoever puts in an edge that the
other lacks makes the two differ but for a chance of 2^−13. Of every two holders one bit is opened to all: whether they
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.text import listed
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.hops import HiddenGraph
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Wire, joined
from veilgraph.paradigms.sealed.plan import Context

COINS: Final = 1 << 14
"""What a holder draws for a node is below it: sums of products over 2^24 edges of ten holders fit the ring."""


def check_double_entry(
    machine: Machine, context: Context, into: Sequence[HiddenGraph], out: Sequence[HiddenGraph]
) -> None:
    """Raises ``DataError`` at every holder, which names the holders whose edges differ; once a session."""
    machine.at("double entry")
    blocks, nodes = context.sizes.blocks, context.sizes.nodes
    drawn = [machine.put(holder, context.of(holder, "coins"), (nodes, 2), 0) for holder in blocks]
    total = drawn[0]
    for each in drawn[1:]:
        total = total + each
    sums = []
    for place, graphs in enumerate((into, out)):
        wide = total[:, place : place + 1].map(partial(_by_holder, [block.rows for block in blocks.values()]))
        spread = machine.open(machine.hop(graphs, wide) - machine.split(wide))
        weights = total[:, 1 - place : 2 - place].map(partial(_repeated, columns=len(blocks)))
        sums.append(machine.product(torch.mul, spread, weights))
    pairs, found = list(combinations(blocks, 2)), []
    columns = {holder: column for column, holder in enumerate(blocks)}

    def of(which: int, at: PartyId, column: PartyId) -> Wire:
        """Over the rows of one holder, of another's column: [1, 1]."""
        part = sums[which][blocks[at].rows, columns[column] : columns[column] + 1]
        return machine.open(part.map(lambda rows: rows.sum(0, keepdim=True)))

    for one, other in pairs:
        differences = joined([of(0, other, one) - of(1, one, other), of(0, one, other) - of(1, other, one)])
        found.append(machine.value(machine.negative(differences)) + machine.value(machine.negative(-differences)))
    counts = [each.map(lambda rows: rows.sum(0, keepdim=True)) for each in found]
    differs = machine.value(machine.negative(-joined([machine.open(each) for each in counts])))
    told = [machine.reveal(machine.open(differs), holder) for holder in blocks]
    bits = next((each for each in told if each is not None), None)
    if bits is not None and bool((bits > 0).any()):
        named = [f"{one} and {other}" for (one, other), bit in zip(pairs, bits[:, 0].tolist(), strict=True) if bit > 0]
        raise DataError(
            f"double entry: {listed(named)} put in edges between their nodes that are not the same; this program puts "
            "in those alone that both have, so that one of them runs another: ask them what they run",
            code="double-entry",
            key="edges",
            party=named[0].split(" and ")[0],
        )


def _by_holder(rows: Sequence[slice], part: Tensor) -> Tensor:
    """A column as several, each with the rows of one holder alone: [N, holders]."""
    found = part.new_zeros((part.shape[0], len(rows)))
    for column, block in enumerate(rows):
        found[block, column] = part[block, 0]
    return found


def _repeated(part: Tensor, columns: int) -> Tensor:
    return part.expand(-1, columns)
