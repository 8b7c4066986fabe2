"""What each organisation sees of a world: the customers it knows, their columns, and who is joined with whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.types import MASKS
from veilgraph.graph.payments.facts import BANK_FACTS, SHOP_FACTS, TELECOM_FACTS, Columns
from veilgraph.graph.payments.transfers import Whole

if TYPE_CHECKING:
    from torch_geometric.data import Data

SHOP: Final = "shop"
TELECOM: Final = "telecom"

UNKNOWN: Final = -1
"""A label or a part of the split that a customer has not, or that is another's to know."""
BANK_COLUMNS: Final = (
    *("company", "age", "log_income"),
    *BANK_FACTS,
    *("log_received", "log_sent", "log_euros_in", "log_euros_out", "passed_on", "other_banks"),
)
"""A bank's columns, the last six from the transfers over its own accounts."""
SHOP_COLUMNS: Final = (*SHOP_FACTS, "orders")
TELECOM_COLUMNS: Final = (*TELECOM_FACTS, "calls")


@dataclass(frozen=True, eq=False)
class View:
    """What one organisation sees.

    Attributes:
        name: of the organisation.
        nodes: int64 [n], ascending: customers that it knows, be it as another's counterparty.
        columns: column → float32 [n], NaN where a customer is not its own.
        ends: int64 [2, E], customers, the lower first: pairs that it sees joined, each once.
        labels: int8 [n], 1 launders, 0 does not; ``UNKNOWN`` but for those whose first bank it is. None: not a bank.
        splits: int8 [n], place in ``SPLITS`` where there is a label. None: not a bank.
    """

    name: str
    nodes: Whole
    columns: Columns
    ends: Whole
    labels: Whole | None = None
    splits: Whole | None = None

    @property
    def rows(self) -> Whole:
        """The ends as places in ``nodes``, [2, E]."""
        return np.searchsorted(self.nodes, self.ends)

    def features(self) -> NDArray[np.float32]:
        """The columns as they are, the mean of a column where there is no value: [n, columns]."""
        found = [np.where(np.isnan(each), np.nanmean(each), each) for each in self.columns.values()]
        return np.stack(found, axis=1).astype(np.float32)

    def data(self) -> Data:
        """All that as one graph, the pairs in both directions.

        Returns:
            ``Data`` with ``x`` [n, columns] float32, the features; ``edge_index`` [2, 2E]; ``n_id`` [n], the nodes; of
            a bank also ``y`` [n], the labels, and three masks.
        """
        import torch  # noqa: PLC0415  (seconds to import)
        from torch_geometric.data import Data  # noqa: PLC0415

        rows = torch.from_numpy(self.rows)
        found = Data(x=torch.from_numpy(self.features()), edge_index=torch.cat([rows, rows.flip(0)], dim=1))
        found.n_id = torch.from_numpy(self.nodes)
        if self.labels is not None and self.splits is not None:
            found.y = torch.from_numpy(self.labels.astype(np.int64))
            found.update({mask: torch.from_numpy(self.splits == place) for place, mask in enumerate(MASKS)})
        return found


def pairs_of(one: Whole, other: Whole, customers: int) -> Whole:
    """The pairs that there are, in whichever direction, each once and ascending: int64 [2, E], the lower first."""
    codes = np.minimum(one, other).astype(np.int64)
    codes *= customers
    codes += np.maximum(one, other)
    codes.sort()  # np.unique hashes, which takes several times as long
    first = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return np.stack(np.divmod(codes[first], customers))
