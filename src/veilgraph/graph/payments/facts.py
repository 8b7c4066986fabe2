"""What a bank, the shop and the telecom have recorded of a customer; most of it leans towards laundering a little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

BANK_FACTS: Final = ("cash_share", "night_share", "abroad_share", "new_devices")
SHOP_FACTS: Final = ("returns_share", "voucher_share", "new_addresses")
TELECOM_FACTS: Final = ("prepaid_share", "night_calls", "new_numbers")

Column = NDArray[np.floating[Any]]
Columns = Mapping[str, Column]


def draw_facts(
    members: NDArray[np.bool_], signal: float, generator: np.random.Generator
) -> tuple[Columns, Columns, Columns]:
    """Columns [N] of bank, shop and telecom: those above, and how much a customer orders and telephones.

    The former are Φ(z − 1) of normal z with variance 1 whose mean is 0, and of members signal/√k with k columns: the
    best guess from one row, a sum over z, has AUC Φ(signal/√2). The latter say nothing.

    Args:
        members: bool [N], who launders.
        signal: of each of the three.
        generator: of all draws.
    """
    bank, shop, telecom = (
        _leaning(members, names, signal, generator) for names in (BANK_FACTS, SHOP_FACTS, TELECOM_FACTS)
    )
    shop["orders"] = generator.gamma(2.0, 1.5, len(members)).astype(np.float32)
    telecom["calls"] = generator.gamma(2.0, 3.0, len(members)).astype(np.float32)
    return bank, shop, telecom


def _leaning(
    members: NDArray[np.bool_], names: tuple[str, ...], signal: float, generator: np.random.Generator
) -> dict[str, Column]:
    from scipy.special import ndtr  # noqa: PLC0415  (slow to import)

    found: dict[str, Column] = {}
    for name in names:
        z = generator.standard_normal(len(members), dtype=np.float32) - 1
        z[members] += np.float32(signal / len(names) ** 0.5)
        found[name] = ndtr(z)
    return found
