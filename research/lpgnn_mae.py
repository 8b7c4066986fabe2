"""How far noise moves what a GNN aggregates: LPGNN's comparison of mechanisms by their neighbourhood estimates.

A node's estimate is ĥ = mean of x' over its neighbours, itself excluded, where x' is the unbiased estimate of a
neighbour's features from what it released; the error is |ĥ − h| with h the mean of the features themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import torch
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.learner import neighbour_adjacency
from veilgraph_node_dp.mechanisms import FeatureMechanism, feature_mechanism
from veilgraph_node_dp.settings import node_dp

from research.grid import GridProgress
from research.lpgnn_plot import draw_errors
from research.lpgnn_table import EPSILONS
from research.store import package_version
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.graph.dataset import load_whole
from veilgraph.graph.features import choose_columns
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import JobSettings
from veilgraph.samples.shipped import shipped_job

EXPERIMENT: Final = "lpgnn-mae"
"""Its name at the command line."""

DATASETS: Final = ("cora", "citeseer", "pubmed", "facebook", "github")
DELTA: Final = 1e-10
"""δ of the Gaussian mechanism; the others have none."""

_MECHANISMS: Final[Mapping[str, Mapping[str, object]]] = {
    "multi-bit": {},
    "one-bit": {},
    "gaussian": {"delta": DELTA},
}
_TITLE: Final = "LPGNN: mean absolute error of the neighbourhood estimate"
_WHOLE_FROM: Final = 1000
COLUMNS: Final = 256
"""Aggregated at once: 38 MB for GitHub's 37,700 nodes."""


def mean_absolute_error(mechanism: FeatureMechanism, graph: PartyGraph, source: SecretSource = system_secrets) -> float:
    """|ĥ − h| of one release, averaged over the nodes that have a neighbour and over features.

    Memory beside the release does not grow with the number of features.

    Args:
        mechanism: for the graph's features.
        graph: labels are not read; self-loops are left out.
        source: of the randomness.

    Returns:
        In the features' unit.

    Raises:
        DataError: no node has a neighbour, or a feature lies outside the declared range.
    """
    adjacency = neighbour_adjacency(graph, "mean", torch.float32)
    reached = adjacency.degrees > 0
    if not reached.any():
        raise DataError(f"party {graph.party!r}: no node has a neighbour, so there is nothing to estimate; give edges")
    released, total = mechanism.release(graph.features, source), 0.0
    for start in range(0, graph.num_features, COLUMNS):
        columns = torch.arange(start, min(start + COLUMNS, graph.num_features))
        x = choose_columns(graph.features, columns).to_dense()
        noise = mechanism.rectify(choose_columns(released, columns)) - x
        total += float(adjacency.sum(noise)[reached].abs().sum(dtype=torch.float64))
    return total / (int(reached.sum()) * graph.num_features)


def estimate_errors(
    *, seeds: int, datasets: Sequence[str], rows: str | None, out: Path, progress: GridProgress, command: str
) -> str:
    """Measures the errors of all mechanisms and writes ``lpgnn-mae.md``, its picture and ``lpgnn-mae.json``.

    The last keeps every error as soon as it is measured; only what is missing is measured again. Noise is not seeded:
    a seed is a further release.

    Args:
        seeds: how many releases per figure.
        datasets: of ``DATASETS``.
        rows: only rows with this text in their name; None: all.
        out: folder, made if absent.
        progress: called with (what is being done, releases done, releases in all).
        command: that makes the page.

    Returns:
        Markdown: mean ± standard deviation over the releases.

    Raises:
        ConfigError: no row has that name.
        VeilgraphError: ``out`` cannot be used, or a data set cannot be read.
    """
    chosen = _chosen([(dataset, mechanism) for dataset in datasets for mechanism in _MECHANISMS], rows)
    kept = _Kept(out)
    done, total = 0, len(chosen) * len(EPSILONS) * seeds
    graph = None
    for dataset, mechanism in chosen:
        job = shipped_job(f"{dataset}-local")
        for epsilon in EPSILONS:
            while len(kept.errors(dataset, mechanism, epsilon)) < seeds:
                progress(f"{EXPERIMENT} {dataset}: {mechanism}, ε {epsilon}", done, total)
                if graph is None or graph.party != dataset:
                    graph = load_whole(job.data, dataset, job.seed)
                built = feature_mechanism(release_settings(job, mechanism, epsilon), graph.num_features)
                kept.add(dataset, mechanism, epsilon, _on_one_thread(built, graph))
                done += 1
    progress("done", total, total)
    figures = {
        (dataset, mechanism): {epsilon: kept.errors(dataset, mechanism, epsilon)[:seeds] for epsilon in EPSILONS}
        for dataset, mechanism in chosen
    }
    draw_errors(figures, out / f"{EXPERIMENT}.png")
    text = _page(figures, seeds, command)
    _write(out / f"{EXPERIMENT}.md", text)
    return text


def release_settings(job: JobSettings, mechanism: str, epsilon: float) -> FeatureReleaseSettings:
    """A release of the job's features by that mechanism, in the job's declared range; δ is ``DELTA`` where one is."""
    released = node_dp(job).release.features
    if released is None:
        raise ConfigError(f"{job.name}: release.features is missing; give the range of the features")
    return FeatureReleaseSettings.model_validate(
        {
            "mechanism": mechanism,
            "epsilon": epsilon,
            "low": released.low,
            "high": released.high,
            **_MECHANISMS[mechanism],
        }
    )


class _Kept:
    """Measured errors on disk. A file of another version of the package is not read, and written over."""

    def __init__(self, out: Path) -> None:
        self._path = out / f"{EXPERIMENT}.json"
        self._errors: dict[str, list[float]] = {}
        try:
            private_folder(out)
            content = json.loads(self._path.read_bytes()) if self._path.is_file() else {}
        except (OSError, ValueError) as error:
            raise RunError(f"{self._path}: cannot be used ({error}); delete it or choose another --out") from error
        if content.get("version") == package_version():
            self._errors = content["errors"]

    def errors(self, dataset: str, mechanism: str, epsilon: float) -> list[float]:
        """Of one release each."""
        return self._errors.get(f"{dataset}, {mechanism}, {epsilon}", [])

    def add(self, dataset: str, mechanism: str, epsilon: float, error: float) -> None:
        """Of a further release."""
        self._errors[f"{dataset}, {mechanism}, {epsilon}"] = [*self.errors(dataset, mechanism, epsilon), error]
        _write(self._path, json.dumps({"version": package_version(), "errors": self._errors}, indent=1) + "\n")


def _chosen(places: Sequence[tuple[str, str]], rows: str | None) -> list[tuple[str, str]]:
    chosen = [place for place in places if rows is None or rows in ", ".join(place)]
    if not chosen:
        names = ", ".join(repr(", ".join(place)) for place in places)
        raise ConfigError(f"rows={rows!r} is part of no row's name; they are {names}")
    return chosen


def _on_one_thread(mechanism: FeatureMechanism, graph: PartyGraph) -> float:
    """The error; noise is made in small pieces, over which several threads wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return mean_absolute_error(mechanism, graph)
    finally:
        torch.set_num_threads(threads)


def _page(figures: Mapping[tuple[str, str], Mapping[float, Sequence[float]]], seeds: int, command: str) -> str:
    lines = [f"# {_TITLE}", ""]
    lines.append(f"| data set, mechanism | {' | '.join(f'ε = {epsilon}' for epsilon in EPSILONS)} |")
    lines.append("|---|" + "---:|" * len(EPSILONS))
    for place, errors in figures.items():
        lines.append(f"| {', '.join(place)} | {' | '.join(_figure(errors[epsilon]) for epsilon in EPSILONS)} |")
    ranges = {dataset: node_dp(shipped_job(f"{dataset}-local")).release.features for dataset, _ in figures}
    declared = ", ".join(f"{dataset} [{of.low:g}, {of.high:g}]" for dataset, of in ranges.items() if of is not None)
    spread = "one release" if seeds == 1 else f"mean ± sample standard deviation over {seeds} releases"
    lines += [
        "",
        f"![{_TITLE}]({EXPERIMENT}.png)",
        "",
        f"- |ĥ − h| averaged over all features and all nodes with a neighbour; {spread}. ĥ is the mean over the "
        "neighbours, without the node itself, of the unbiased estimate of their features.",
        f"- Declared ranges, in whose unit errors are: {declared}.",
        f"- ε is of one node's release, all its features together; gaussian is the analytic Gaussian mechanism with "
        f"δ = {DELTA:g}, the others have no δ. one-bit is multi-bit with all features sampled.",
        "- The paper has these errors in a picture only.",
        f"- veilgraph {package_version()}, torch {torch.__version__}. Made with `{command}`.",
    ]
    return "\n".join(lines) + "\n"


def _figure(errors: Sequence[float]) -> str:
    mean = _number(fmean(errors), digits=4)
    return mean if len(errors) == 1 else f"{mean} ± {_number(stdev(errors), digits=2)}"


def _number(value: float, digits: int) -> str:
    return f"{value:,.0f}" if value >= _WHOLE_FROM else f"{value:.{digits}g}"


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); choose another --out") from error
