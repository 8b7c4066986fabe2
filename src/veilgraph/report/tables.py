"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.figures import ACCURACY, CLASS_MEASURES, Measures
from veilgraph.run.run_directory import Record

_UNITS: Final = ("kB", "MB", "GB", "TB")

_COMMON: Final = "of them common"
_CLASSES_SHOWN: Final = 12


def human_bytes(count: int) -> str:
    """A number of bytes in decimal units with three digits or so: ``999 B``, ``1.5 kB``, ``128 MB``."""
    if count < 1000:
        return f"{count} B"
    value, unit = count / 1000, 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if value < 9.95 else f"{value:.0f} {_UNITS[unit]}"


def percent(share: float | None) -> str:
    """A share in [0, 1] as a percentage; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f} %"


def run_table(summary: Record, measures: Measures = CLASS_MEASURES) -> Table:
    """The result of one run."""
    main = measures.main
    table = Table(title="Result", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    table.add_row("best epoch", str(summary["best_epoch"]))
    for split, title in (("val", "validation"), ("test", "test")):
        table.add_row(f"{title} {main.title}", main.shown(summary.get(f"{split}_{main.name}")))
    if alone := summary.get("without_releases"):
        table.add_row("test accuracy without what was released (ε → 0)", ACCURACY.shown(alone["test_accuracy"]))
    for figure in measures.figures[1:]:
        if (value := summary.get(f"test_{figure.name}")) is not None:  # AUC is undefined where test nodes lack a class
            table.add_row(f"test {figure.title}", figure.shown(value) if figure.is_share else f"{value:.3f}")
    table.add_row("seconds per step", f"{summary['seconds_per_step']:.3f}", end_section=True)
    since = f" since epoch {summary['started_at']}" if summary["started_at"] else ""  # only a resumed run's own bytes
    for party, count in summary["sent_bytes"].items():
        table.add_row(f"sent by {party}{since}", human_bytes(count))
    return table


def comparison_table(
    summaries: Mapping[str, Record], caption: str | None = None, measures: Measures = CLASS_MEASURES
) -> Table:
    """Several trainings of one task side by side.

    Args:
        summaries: name of the training → its summary, in the order of the rows; the federated one is set in bold.
        caption: said below the table.
        measures: of the job.
    """
    table = Table(title="Comparison", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("training")
    main = measures.main
    for heading in (f"test {main.title}", "validation", "best epoch", "seconds/step"):
        table.add_column(heading, justify="right")
    for name, summary in summaries.items():
        table.add_row(
            name,
            main.shown(summary.get(f"test_{main.name}")),
            main.shown(summary.get(f"val_{main.name}")),
            str(summary["best_epoch"]),
            f"{summary['seconds_per_step']:.3f}",
            style="bold" if "sent_bytes" in summary else None,
        )
    return table


def traffic_table(sent_bytes: Mapping[PartyId, int]) -> Table:
    """Bytes sent by each party over a whole run."""
    table = Table(title="Traffic", title_justify="left")
    table.add_column("party")
    table.add_column("sent", justify="right")
    for party, count in sent_bytes.items():
        table.add_row(party, human_bytes(count))
    return table


def data_table(graphs: Sequence[PartyGraph], *, aligned: bool = True) -> Table:
    """What each holder brings, before anything is trained.

    Args:
        graphs: one per holder, in the job's order.
        aligned: whether their common nodes are the first of each; holders with nodes of their own have none to count.
    """
    table = Table(title="Data", title_justify="left")
    table.add_column("")
    for graph in graphs:
        table.add_column(graph.party, justify="right")
    rows = [_data_rows(graph) for graph in graphs]
    for heading in rows[0]:
        if heading == _COMMON and not aligned:
            continue
        table.add_row(heading, *(row[heading] for row in rows))
    return table


def data_facts(graphs: Sequence[PartyGraph], *, aligned: bool = True) -> list[Record]:
    """What ``data_table`` shows, for programs; the arguments are its."""
    found: list[Record] = []
    for graph in graphs:
        degrees = graph.edge_index[1].bincount(minlength=graph.num_nodes)
        masks = {split: getattr(graph, f"{split}_mask") for split in ("train", "val", "test")}
        facts = {
            "party": graph.party,
            "nodes": graph.num_nodes,
            "common": graph.common if aligned else None,
            "edges": graph.num_edges,
            "features": graph.num_features,
            "smallest_degree": int(degrees.min()) if len(degrees) else None,
            "largest_degree": int(degrees.max()) if len(degrees) else None,
            "isolated": int((degrees == 0).sum()),
            "classes": graph.num_classes,
            "labels": {split: None if mask is None else int(mask.sum()) for split, mask in masks.items()},
            "labels_by_class": {split: _by_class(graph, mask) for split, mask in masks.items()},
        }
        found.append(facts)
    return found


def _data_rows(graph: PartyGraph) -> dict[str, str]:
    # Degrees are counted here, whatever the weights: an edge of weight 0 still joins two nodes.
    degrees = graph.edge_index[1].bincount(minlength=graph.num_nodes)
    lonely = int((degrees == 0).sum())
    rows = {
        "nodes": f"{graph.num_nodes:,}",
        _COMMON: f"{graph.common:,}",
        "edges (directed)": f"{graph.num_edges:,}",
        "features": f"{graph.num_features:,}",
        "degrees": f"{int(degrees.min())} to {int(degrees.max())}" if len(degrees) else "–",
        "isolated nodes": f"{lonely:,}",
        "classes": "–" if graph.num_classes is None else str(graph.num_classes),
    }
    for split in ("train", "val", "test"):
        mask = getattr(graph, f"{split}_mask")
        counts = _by_class(graph, mask)
        each = ", ".join(f"{count:,}" for count in counts[:_CLASSES_SHOWN]) + (", …" * (len(counts) > _CLASSES_SHOWN))
        rows[f"{split} labels"] = "–" if mask is None else f"{int(mask.sum()):,}" + (f" ({each})" if each else "")
    return rows


def _by_class(graph: PartyGraph, mask: Tensor | None) -> list[int]:
    """A split's labelled nodes of each class; none without labels."""
    if graph.labels is None or mask is None:
        return []
    labels = graph.labels[mask]
    counts: list[int] = labels[labels >= 0].bincount(minlength=graph.num_classes or 0).tolist()
    return counts
