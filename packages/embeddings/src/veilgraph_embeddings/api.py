"""Embeddings from Python: a job, and perhaps a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from veilgraph.core.arguments import check_functions, path_of, wrong_type
from veilgraph.core.files import fresh_path, locked
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pyg_data import check_one_graph
from veilgraph_embeddings.directory import EmbeddingDirectory
from veilgraph_embeddings.limits import GivenLedger, lifetime_of_job
from veilgraph_embeddings.making import Progress, make
from veilgraph_embeddings.report import card_of, page_of, report_of
from veilgraph_embeddings.settings import EmbedJob, parse_embed_job, read_embed_job
from veilgraph_embeddings.sources import Ids, world_of

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data


class Embeddings:
    """Complete embeddings on disk.

    Args:
        path: of their directory.

    Raises:
        RunError: none are there, or others than its owner may use it, or a published file has been changed.
    """

    def __init__(self, path: str | Path) -> None:
        self._directory = EmbeddingDirectory.open(path_of("path", path, "embeddings"))
        self._ids, self._rows = self._directory.embeddings()

    def __repr__(self) -> str:
        found = self.report["after"]["attack"]["advantage"]["value"]
        return f"Embeddings({str(self.path)!r}): {self.job.method.name}, strongest attack's advantage {found:.3f}"

    @property
    def path(self) -> Path:
        """Their directory; ``publish`` in it is what may leave."""
        return self._directory.path

    @property
    def job(self) -> EmbedJob:
        """The job as run."""
        return self._directory.job

    @property
    def ids(self) -> list[str]:
        """[N], of the rows, ascending."""
        return self._ids

    @property
    def rows(self) -> Tensor:
        """Tensor[N, d] float32."""
        return self._rows

    @property
    def report(self) -> dict[str, Any]:
        """What attacks found before and after, what is kept, and what a release cost; as ``report.json``."""
        return self._directory.report()

    @property
    def page(self) -> Path:
        """The same as a page."""
        return self._directory.private / "report.html"


def embed(
    job: EmbedJob | Mapping[str, object] | str | Path,
    graph: PartyGraph | Data | None = None,
    out: str | Path | None = None,
    *,
    ids: Ids | None = None,
    ledger: GivenLedger | None = None,
    progress: Progress = lambda stage, step, steps: None,
) -> Embeddings:
    """Embeds a graph for publication, and attacks what was made.

    Args:
        job: its settings, a mapping of them, or the path of its file (docs/guides/embeddings.md).
        graph: a ``PartyGraph`` or PyTorch Geometric's ``Data``, where the job's ``data`` names none.
        out: the directory, which must not exist or be empty; default: ``runs/<job's name>-<date>-<time>``.
        ids: of the graph's rows, which are published with the embeddings; default: ``Data.n_id``, or the rows' numbers.
        ledger: with ``noise``: folder of the graph's ledger for life, or ``{"folder": ..., "max_epsilon": 1.0}``, which
            is a limit from then on. Default: beside a saved graph, and of one from memory none: its releases are in the
            ledger of this run alone. Without ids everybody pays for a release.
        progress: called with a stage, steps done, and how many there are.

    Raises:
        VeilgraphError: a setting or the data broke a rule, or the budget does not allow the release. Nothing is then in
            ``publish``; with ``noise`` the ledgers may have been written.
    """
    path = None if out is None else path_of("out", out)
    check_functions(progress=progress)
    settings = job if isinstance(job, EmbedJob) else _read(job)
    if graph is not None and not isinstance(graph, PartyGraph):
        check_one_graph("graph", graph)
    if ledger is not None and not isinstance(ledger, str | os.PathLike | Mapping):
        way_out = "give a path, or {'folder': path, 'max_epsilon': 1.0}"
        raise wrong_type("ledger", ledger, "a ledger's folder", way_out)
    lifetime = lifetime_of_job(settings, ledger)
    world = world_of(settings, graph, ids)
    directory = EmbeddingDirectory.create(fresh_path(settings.name) if path is None else path, settings)
    with locked(directory.path, f"{directory.path} is in use by another process; wait for it, or stop it"):
        made = make(settings, world, directory.private, progress, lifetime=lifetime)
        report = report_of(settings, world, made, lasting=lifetime is not None)
        directory.write_encoder(made.embedded.weights)
        directory.write_report(report, page_of(report))
        directory.publish(world.ids, made.embedded.rows, card_of(settings, made))
    return Embeddings(directory.path)


def _read(job: Mapping[str, object] | str | Path) -> EmbedJob:
    if isinstance(job, Mapping):
        return parse_embed_job(job)
    if not isinstance(job, str | os.PathLike):
        way_out = "give embed a dict of settings, or the path of a YAML file (docs/guides/embeddings.md)"
        raise wrong_type("job", job, "a job of embeddings", way_out)
    return read_embed_job(path_of("job", job, "a job file"))
