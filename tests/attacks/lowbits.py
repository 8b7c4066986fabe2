"""The attack ``lowbits``: what do the low bits of an opened sum say of one holder's summand?

Any function of the k low bits is a table of 2^k numbers. The best one for telling two classes of entries apart is the
odds of each residue, which half of the rows teach; the other half measures it. Trailing zeros and single bits are
tried besides, as functions that need not be learned.
"""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from tests.mpc.sessions import agreed_masks
from veilgraph.mpc.mask import ring_sum

LOW_BITS = 10


def opened(values: list[Tensor], bits: int) -> Tensor:
    """The sum as whoever opens it gets it, in the ring, of what the holders send under their masks."""
    names = [f"holder {index}" for index in range(len(values))]
    masks = agreed_masks(names, "lowbits")
    hidden = [masks[name].hide(own, bits, "it", 0, "") for name, own in zip(names, values, strict=True)]
    return ring_sum(hidden)


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Probability that a positive scores higher than a negative, ties half."""
    ranks, count = rankdata(scores), int(positive.sum())
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


def trailing_zeros(total: np.ndarray, most: int) -> np.ndarray:
    """How many of the ``most`` lowest bits are 0 below the lowest 1."""
    return np.asarray(np.stack([(total & ((2 << place) - 1)) == 0 for place in range(most)]).sum(axis=0))


def table(total: Tensor, positive: Tensor, low_bits: int) -> np.ndarray:
    """Log odds of being positive for each residue of the low bits, as half of the rows teach them."""
    half = len(total) // 2
    residues, known = (total[:half] & ((1 << low_bits) - 1)).numpy().ravel(), positive[:half].numpy().ravel()
    ones = np.bincount(residues, weights=known, minlength=1 << low_bits)
    share = (ones + known.mean()) / (np.bincount(residues, minlength=1 << low_bits) + 1)
    return np.asarray(np.log(share / (1 - share)))


def entries(total: Tensor, positive: Tensor, low_bits: int = LOW_BITS) -> Iterator[tuple[str, float]]:
    """AUC of each function of the low bits for "this entry is positive"; ``positive`` has the shape of ``total``."""
    half = len(total) // 2
    residues = (total[half:] & ((1 << low_bits) - 1)).numpy().ravel()
    truth = positive[half:].numpy().ravel()
    each = np.arange(1 << low_bits)
    ones = np.bincount(residues, weights=truth, minlength=len(each))
    zeros = np.bincount(residues, minlength=len(each)) - ones

    def of(function: np.ndarray) -> float:
        """As ``auc``, of what the residues' scores are, from their counts."""
        place = np.unique(function, return_inverse=True)[1]
        positives, negatives = np.bincount(place, weights=ones), np.bincount(place, weights=zeros)
        below = negatives.cumsum() - negatives / 2
        return float((positives * below).sum() / (positives.sum() * negatives.sum()))

    for size in (low_bits, low_bits // 2, 2):
        yield f"odds by {size} bits", of(table(total, positive, size)[each % (1 << size)])
    yield "trailing zeros", of(trailing_zeros(each, low_bits))
    for place in range(low_bits):
        yield f"bit {place}", of((each >> place) & 1)


def rows(total: Tensor, positive: Tensor, low_bits: int = LOW_BITS) -> Iterator[tuple[str, float]]:
    """AUC for "this row is positive", ``positive`` [N], of what its entries' low bits say together."""
    half = len(total) // 2
    spread, truth = positive[:, None].expand(total.shape), positive[half:].numpy()
    for size in (low_bits, low_bits // 2, 2):
        scores = table(total, spread, size)[(total[half:] & ((1 << size) - 1)).numpy()]
        yield f"odds by {size} bits", auc(scores.sum(axis=1), truth)
    yield "trailing zeros", auc(trailing_zeros(total[half:].numpy(), low_bits).sum(axis=1), truth)


def unit_rows(
    count: int,
    dim: int,
    generator: torch.Generator,
    *,
    relu: bool = False,
    dtype: torch.dtype = torch.float32,
    spread: int = 12,
) -> Tensor:
    """Rows of length 1 whose entries are of all sizes; with ``relu`` half of them are 0."""
    sizes = torch.exp2(-spread * torch.rand(count, dim, dtype=dtype, generator=generator))
    values = torch.randn(count, dim, dtype=dtype, generator=generator) * sizes
    values = values.relu() if relu else values
    return torch.nn.functional.normalize(values)
