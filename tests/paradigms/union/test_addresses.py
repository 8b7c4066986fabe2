"""What the hashes of edges tell, and do not tell, who has the list."""

import hashlib
from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES, keyed_hashes
from veilgraph.paradigms.union.edge_lists import Hashes, edge_hashes

SESSION = "5" * 32
NAMES = [f"A/{number}".encode() for number in range(40)]
Words = NDArray[np.uint64]


def node_hashes(names: Sequence[bytes], session: str) -> Hashes:
    return keyed_hashes(session.encode(), names, 2 * HASH_BYTES).numpy().view(f"V{HASH_BYTES}")


def every_edge(nodes: int) -> Tensor:
    return torch.tensor(list(permutations(range(nodes), 2))).T


def words(hashes: Hashes) -> Words:
    return np.ascontiguousarray(hashes).view(np.uint64).reshape(-1, 2)


def repeated(rows: Words) -> int:
    return len(rows) - len(np.unique(rows, axis=0))


def test_a_hash_is_of_one_edge_in_one_direction() -> None:
    names = [f"A/{number}".encode() for number in range(300)]
    ends, nodes = every_edge(len(names)), node_hashes(names, SESSION)
    hashes = edge_hashes(ends, nodes, SESSION)
    for half in range(2):  # edges are put in order by one half, which has to tell all of them apart
        assert repeated(words(hashes)[:, [half]]) == 0
    assert len(hashes) > 1 << 16  # more than are hashed at a time
    for place in (0, 1, len(hashes) - 1):
        assert edge_hashes(ends[:, [place]], nodes, SESSION)[0] == hashes[place]


def test_both_holders_of_an_edge_hash_it_alike_whatever_else_they_have() -> None:
    ends, back = every_edge(5), torch.tensor([4, 3, 2, 1, 0])
    first = edge_hashes(ends, node_hashes(NAMES[:5], SESSION), SESSION)
    second = edge_hashes(back[ends], node_hashes(NAMES[:5][::-1], SESSION), SESSION)
    assert np.array_equal(first, second)


@pytest.mark.parametrize("known", ["target", "source"])
def test_edges_of_an_unknown_node_do_not_show_which_other_ends_they_have(known: str) -> None:
    """Solve each hash for the unknown end's part under each own node: a value that fits two edges names their ends.

    The rows in the list say which edges are of one node. Whoever has a list also has the key of the permutation.
    """
    ends = torch.stack([torch.zeros(len(NAMES) - 1, dtype=torch.int64), torch.arange(1, len(NAMES))])
    nodes = node_hashes(NAMES, SESSION)
    told = words(edge_hashes(ends if known == "target" else ends.flip(0), nodes, SESSION))
    own = words(nodes[1:, 1 if known == "target" else 0])
    undo = Cipher(algorithms.AES256(hashlib.sha256(SESSION.encode()).digest()), modes.ECB()).decryptor().update

    def undone(values: Words) -> Words:
        return np.frombuffer(undo(values.tobytes()), np.uint64).reshape(values.shape)

    every = told[:, None] ^ own
    for solved in (
        every,  # of a hash that is x
        undone(told)[:, None] ^ own,  # AES(x)
        undone(every) ^ own,  # AES(x) XOR the known end's part
    ):
        assert repeated(solved.reshape(-1, 2)) == 0


def test_another_session_has_other_hashes_of_nodes_and_of_edges() -> None:
    ends, told = every_edge(len(NAMES)), list[Words]()
    for of_nodes, of_edges in product((SESSION, "6" * 32), repeat=2):
        told.append(words(edge_hashes(ends, node_hashes(NAMES, of_nodes), of_edges)))
    assert repeated(np.concatenate(told)) == 0
