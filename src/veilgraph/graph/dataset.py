"""A data set: what a federation is simulated with.

``graph.settings.DATASETS`` finds one by the name in a job. A package adds its own, an instance of a subclass of
``DataSet``, by an entry point of the group ``veilgraph.datasets``; ``veilgraph.testing.dataset`` holds it to the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Settings
from veilgraph.graph.horizontal import split_by_label, split_by_nodes, split_horizontally
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.parts import HorizontalPart
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DATASETS, DataSettings

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data


class DataSet:
    """One graph, of which ``whole`` is all that there is to say; or one that comes divided and says how.

    Attributes:
        settings: of the keys of ``data.made``, where another package makes the data set; None: it has none.
    """

    settings: ClassVar[type[Settings] | None] = None

    def whole(self, settings: DataSettings, seed: int) -> Data:
        """The graph, undivided: ``x`` [N, F], dense or sparse_csr; ``edge_index``; ``y``; masks. Features unscaled.

        Args:
            settings: ``data`` of the job.
            seed: of all that is drawn; the same seed gives the same graph.

        Raises:
            ConfigError: it is not one graph.
            DataError: a file is missing or damaged.
        """
        one = (name for name, each in DATASETS.items() if type(each).whole is not DataSet.whole)
        raise ConfigError(f"data.dataset={settings.dataset!r} is not one graph to divide; choose {', '.join(one)}")

    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        """The holders' graphs in the settings' order, over the same nodes, not yet scaled.

        Args:
            settings: ``data`` of the job.
            seed: of the graph and of its division.

        Raises:
            DataError: a file is missing or damaged, or the settings ask for what it does not have.
        """
        return split_vertically(
            self.whole(settings, seed),
            names=settings.names,
            feature_proportions=settings.feature_proportions,
            edge_proportions=settings.edge_proportions,
            label_holder=settings.label_party,
            seed=seed,
            num_classes=self.classes(settings),
        )

    def parts(self, data: Data, settings: DataSettings, seed: int) -> list[HorizontalPart]:
        """The holders' parts of the undivided graph in the settings' order, in the same columns, not yet scaled.

        Args:
            data: ``whole`` of the same settings and seed, with the split that the job asks for.
            settings: ``data`` of the job; ``partition`` says how it is divided.
            seed: of the division.

        Raises:
            DataError: the settings ask for what it does not have.
        """
        partition, names = settings.partition, settings.names
        if partition.by == "edges":
            return split_horizontally(data, names=names, seed=seed, overlap=partition.overlap, knows=partition.knows)
        if partition.by == "nodes":
            return split_by_nodes(data, names=names, seed=seed)
        return split_by_label(data, names=names, seed=seed, mixed=partition.mixed, knows=partition.knows)

    def classes(self, settings: DataSettings) -> int | None:
        """How many classes there are, where one may have no node; None: as many as there are labels."""
        return None
