"""The data set ``payments``: what organisations of a world see of it, as graphs or as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import torch
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import POOLED, HorizontalPart
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph_datasets.settings import PaymentsSettings
from veilgraph_datasets.world import SHOP, TELECOM, UNKNOWN, PaymentsWorld, payments_world

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

_CLASSES: Final = 2
_PARTNERS: Final = (SHOP, TELECOM)


class Payments(DataSet):
    """Customers of several banks, of whom some launder: two classes."""

    settings = PaymentsSettings
    comes_divided = "payments come divided; sizes are settings, as --set data.payments.banks=3"
    schemas = ("amlworld", "pets")

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        """All customers with what their banks know of them together, and who pays whom."""
        return _world(settings, seed).together().data()

    @override
    def classes(self, settings: DataSettings) -> int:
        return _CLASSES

    @override
    def parts(self, data: Data, settings: DataSettings, seed: int) -> list[HorizontalPart]:
        """A bank for each holder: its customers and their counterparties, of whom it knows nothing else.

        With ``partition.by`` nodes, those alone whose first bank it is: no node is at two holders.

        Raises:
            DataError: there are not as many banks as holders, or ``partition`` is given.
        """
        self._check_banks(settings)
        apart = settings.partition == PartitionSettings(by="nodes")
        if not apart and settings.partition != PartitionSettings():
            raise DataError("data.partition: payments are divided by banks, and in no other way; leave it out")
        world = _world(settings, seed)
        found = []
        for name, bank in zip(settings.names, world.banks, strict=True):
            seen = world.view(bank).data()
            if apart:
                seen = _among(seen, seen.n_id[seen.y != UNKNOWN].numpy())
            nodes, told = seen.n_id, seen.y != UNKNOWN
            seen.update({mask: data[mask][nodes] & told for mask in MASKS})
            found.append(HorizontalPart(PartyGraph.from_data(name, seen, _CLASSES), nodes))
        return found

    @override
    def at_home(self, data: Data, settings: DataSettings, seed: int) -> list[tuple[PartyGraph, list[str]]]:
        """A bank for each holder: the accounts there, and who pays whom between accounts of all banks.

        Raises:
            DataError: there are not as many banks as holders.
        """
        self._check_banks(settings)
        split = np.select([data[mask].numpy() for mask in MASKS], range(len(MASKS)), UNKNOWN)
        accounts, home = replace(_world(settings, seed), split=split).accounts()
        return split_at_home(PartyGraph.from_data(POOLED, accounts, _CLASSES), settings.names, home)

    @staticmethod
    def _check_banks(settings: DataSettings) -> None:
        banks = _asked(settings).banks
        if len(settings.names) != banks:
            raise DataError(
                f"data.holders={len(settings.names)} are to be the banks, and data.payments.banks={banks}; make them "
                "the same"
            )

    @override
    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        """The first bank, the shop and, of three holders, the telecom, over the bank's customers that all of them know.

        Raises:
            DataError: more than three holders, or proportions, which this data set does not have.
        """
        if settings.feature_proportions is not None or settings.edge_proportions is not None:
            raise DataError(
                "data.dataset='payments' gives a bank, a shop and a telecom their own columns and edges, and takes no "
                "feature_proportions or edge_proportions; leave them out"
            )
        names = settings.names
        if len(names) > 1 + len(_PARTNERS):
            raise DataError(
                f"data.holders={len(names)}: payments has a bank, a shop and a telecom for holders of the same "
                "customers; take 2 or 3"
            )
        world = _world(settings, seed)
        bank = world.view(world.banks[0])
        views = [bank, *(world.view(each) for each in _PARTNERS[: len(names) - 1])]
        common = np.flatnonzero(world.customers.first == 0)
        for each in views[1:]:
            common = np.intersect1d(common, each.nodes, assume_unique=True)
        found = []
        for name, each in zip(names, views, strict=True):
            data = _among(each.data(), common)
            if name == settings.label_party:
                told = _among(bank.data(), common)
                data.update({key: told[key] for key in ("y", *MASKS)})
            else:
                for key in ("y", *MASKS):
                    data.pop(key, None)
            found.append(PartyGraph.from_data(name, data, _CLASSES if "y" in data else None))
        return found

    @override
    def export_tables(
        self,
        settings: DataSettings,
        out: Path,
        seed: int,
        table_format: Literal["csv", "parquet"],
        schema: str | None = None,
    ) -> dict[PartyId, Path]:
        from veilgraph_datasets.payments_tables import export_payments  # noqa: PLC0415 - few sessions write tables
        from veilgraph_datasets.published_schemas import SCHEMAS  # noqa: PLC0415

        return (export_payments if schema is None else SCHEMAS[schema])(_asked(settings), out, seed, table_format)

    def world(self, settings: PaymentsSettings, seed: int) -> PaymentsWorld:
        """All of it, with the truth."""
        return payments_world(settings, seed)


def _among(data: Data, nodes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Data:
    """The graph of some of its nodes, in their order."""
    rows = torch.from_numpy(np.searchsorted(data.n_id.numpy(), nodes))
    return data.subgraph(rows)


def _asked(settings: DataSettings) -> PaymentsSettings:
    return settings.payments if isinstance(settings.payments, PaymentsSettings) else PaymentsSettings()


def _world(settings: DataSettings, seed: int) -> PaymentsWorld:
    return payments_world(_asked(settings), seed)


PAYMENTS = Payments()
