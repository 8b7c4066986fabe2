"""Cora, CiteSeer and PubMed, with the public split (Yang et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.io import read_planetoid_data
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.features import compact
from veilgraph.graph.public.files import ROOT_VARIABLE, data_root
from veilgraph.graph.settings import DataSettings

NAMES: Final = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def planetoid_data(dataset: str, root: Path) -> Data:
    """Reads a Planetoid graph from ``root/planetoid/<Name>/raw`` or ``root/<Name>/raw``, downloading it if absent.

    Reading writes nothing, so the folder may be read-only.

    Raises:
        DataError: the files are neither there nor to be had, or are damaged.
    """
    name = NAMES[dataset]
    folders = [root / "planetoid" / name / "raw", root / name / "raw"]
    files = [f"ind.{dataset}.{part}" for part in _PARTS]
    found = next((folder for folder in folders if all((folder / file).is_file() for file in files)), None)
    if found is None:
        found = _download_planetoid(name, root, folders)
    try:
        data = read_planetoid_data(str(found), dataset)
    except Exception as error:
        raise DataError(f"{found}: the files of {name} are damaged ({error}); delete and fetch them again") from error
    data.x = compact(data.x)
    return data


def _download_planetoid(name: str, root: Path, looked: list[Path]) -> Path:
    try:
        Planetoid(str(root / "planetoid"), name)
    except Exception as error:
        raise DataError(
            f"data.dataset={name.lower()!r}: no files in {looked[0]} or {looked[1]}, and the download failed "
            f"({error}); put the files ind.{name.lower()}.* there, or set data.root or {ROOT_VARIABLE} to "
            "their folder"
        ) from error
    return looked[0]


@dataclass(frozen=True)
class PlanetoidGraph(DataSet):
    """One of them, by its name in a job."""

    name: str

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return planetoid_data(self.name, data_root(settings))


CORA, CITESEER, PUBMED = map(PlanetoidGraph, NAMES)
