"""The section on the secure product beside its peers: ``python -m benchmarks.peers [SHAPE ...]``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping

import torch

from benchmarks import goals, product
from benchmarks.peer_runs import LIMIT_S, OURS, PEERS, REPEATS, SHAPES, holders, measure, sockets_seconds
from benchmarks.product_check import PeerFigures
from veilgraph.core.errors import VeilgraphError

_ABOUT = [
    "Compared are h⁰ = X·W, opened to both holders, and then Xᵀ·g, which stays shared. The peers are SPU 0.9.5 "
    "(SEMI2K) and CrypTen 0.4.1 (provider TTP), every party a process. Ours runs in threads, and the time that its "
    "messages take over sockets is added. `python -m benchmarks.peers` prints seconds and bytes.",
    "",
    "- **Ahead.** Ours and CrypTen make ahead what does not depend on values; SPU does not. `in all` adds ours up.",
    "- **x cached.** SPU opens a cached x minus its mask once, as ours does.",
    "- **What is computed.** Ours is exact; SPU and CrypTen truncate every product.",
    "- **Trust.** SEMI2K as it comes makes its randomness at the first holder, which could unmask everything. "
    "CrypTen's third party stands where our server does.",
    "- **Fairness.** Theirs multiplies any shared matrices; of ours one holder knows each block of X.",
    "",
]


def section(shapes: Mapping[str, int] = SHAPES, *, each: bool = True) -> list[str]:
    """Lines of Markdown.

    Args:
        shapes: shape → rounds.
        each: whether each system has a row of its own, beside the ratios.
    """
    measured = {}
    for shape, rounds in shapes.items():
        measured[_title(shape)] = found = measure(shape, rounds)
        ours, ratio = found[OURS], _online(found)
        if ours is not None and ratio is not None:  # what it sends takes its time, however fast it computes
            floor = sockets_seconds(holders(shape)) / (ratio * ours.online_seconds)
            goals.keep(f"product {shape}", 1 / ratio, floor)
    missing = [f"{name} ({peer.variable})" for name, peer in PEERS.items() if peer.python() is None]
    lines = [
        "## The secure product beside SPU and CrypTen",
        "",
        f"One step, 2 holders, d = {product.DIM}; medians of {_listed(shapes.values())} rounds in which all were "
        "measured in turn.",
        "",
    ]
    if each:
        lines += [
            f"A peer's run ends after {LIMIT_S} seconds, its start, the sharing of X and {1 + REPEATS} steps included. "
            "Bytes: what a holder sends online, and what the dealer sends to all (ours: by the formula).",
            "",
            "| shape | system | online | in all | a holder, online | dealer, ahead | largest error |",
            "|---|---|---|---|---|---|---|",
            *(_row(title, name, system) for title, figures in measured.items() for name, system in figures.items()),
            "",
        ]
    lines += [
        "The better peer of each column, over ours:",
        "",
        "| shape | online | in all | bytes online, x not cached | bytes online |",
        "|---|---|---|---|---|",
        *(_ratios(title, figures) for title, figures in measured.items()),
        "",
    ]
    if missing:
        lines += [f"Left out, for want of an environment: {', '.join(missing)}; `make bench-peers` makes it.", ""]
    return lines + _ABOUT


def _listed(numbers: Iterable[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _title(shape: str) -> str:
    parties = holders(shape)
    columns = sum(graph.num_features for graph in parties)
    kind = "dense" if parties[0].features.layout == torch.strided else "sparse"
    return f"{shape}, {parties[0].num_nodes:,} × {columns:,}, {kind}"


def _row(title: str, name: str, figures: PeerFigures | None) -> str:
    if figures is None:
        return f"| {title} | {name} | not done in {LIMIT_S} s | | | | |"
    online = "–" if figures.online_seconds == figures.seconds else f"{figures.online_seconds:.3f} s"
    dealt = f"{figures.ahead_bytes / 1e6:.1f} MB" if figures.ahead_bytes else "–"
    error = "none" if name == OURS else f"{figures.error:.4f}"
    sent = f"{figures.sent_bytes / 1e6:.2f} MB"
    return f"| {title} | {name} | {online} | {figures.seconds:.3f} s | {sent} | {dealt} | {error} |"


def _peers(figures: Mapping[str, PeerFigures | None]) -> dict[str, PeerFigures]:
    return {name: system for name, system in figures.items() if name != OURS and system is not None}


def _online(figures: Mapping[str, PeerFigures | None]) -> float | None:
    """How many times as long the better peer takes online; None where one of them has no figures."""
    ours, peers = figures[OURS], _peers(figures)
    return min(peer.online_seconds for peer in peers.values()) / ours.online_seconds if ours and peers else None


def _ratios(title: str, figures: Mapping[str, PeerFigures | None]) -> str:
    ours, peers, online = figures[OURS], _peers(figures), _online(figures)
    if ours is None or online is None:
        return f"| {title} | – | – | – | – |"
    in_all = min(peer.seconds for peer in peers.values()) / ours.seconds
    general = [peer.sent_bytes for name, peer in peers.items() if "cached" not in name]
    sent = [peer.sent_bytes / ours.sent_bytes for peer in peers.values()]
    uncached = f"{min(general) / ours.sent_bytes:.1f}" if general else "–"
    return f"| {title} | {online:.0f} | {in_all:.1f} | {uncached} | {min(sent):.1f} |"


def main() -> None:
    """Prints the section."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"default: {' '.join(SHAPES)}")
    shapes = parser.parse_args().shapes or list(SHAPES)
    if unknown := set(shapes) - set(SHAPES):
        parser.error(f"{', '.join(sorted(unknown))}: no such shape; there are {', '.join(SHAPES)}")
    try:
        print("\n".join(section({shape: SHAPES[shape] for shape in shapes})))
    except VeilgraphError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
