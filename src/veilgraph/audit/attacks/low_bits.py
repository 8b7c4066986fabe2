"""Whether the low bits of opened sums say anything: secret rounding makes them uniform, whatever the summands are.

Without it a sum has as many trailing zeros as its smallest summand (``mpc.secret_rounding``). Equal summands are
rounded equally, so that equal sums count once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chisquare

from veilgraph.core.errors import DataError

_LOW: Final = 4
_FEWEST: Final = 320
_DIGITS: Final = 23
_SLACK: Final = 4


def low_bits_p_value(sums: Iterable[NDArray[np.int64]], *, bits: int, summands: int) -> tuple[float, float]:
    """χ² test of the lowest four bits of opened sums of float32 numbers.

    Args:
        sums: int64 of any shape.
        bits: fractional bits.
        summands: how many were added up, of which the largest says how many low bits are uniform.

    Returns:
        The p-value, and the share of sums that end in four zeros: 1/16 where the bits say nothing.

    Raises:
        DataError: too few different sums are large enough for four bits.
    """
    least = summands * 2.0 ** (_LOW + _DIGITS - _SLACK + 1)  # so that the largest summand is moved by 2^4 or more
    distinct = np.unique(np.concatenate([np.unique(each) for each in sums]))
    chosen = distinct[np.abs(distinct.astype(np.float64)) >= least]
    if len(chosen) < _FEWEST:
        raise DataError(
            f"sums: {len(chosen)} different ones are of {least * 2.0**-bits:.2g} or more; of {_FEWEST} it can be told "
            "whether their low bits are uniform"
        )
    counts = np.bincount(chosen & ((1 << _LOW) - 1), minlength=1 << _LOW)
    return float(chisquare(counts).pvalue), float(counts[0] / len(chosen))
