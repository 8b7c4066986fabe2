import csv
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests import nightly
from tests.report.conftest import Copy, page_of
from veilgraph.core.text import human_bytes
from veilgraph.graph.party import load_party
from veilgraph.protocol.judge import Predicted
from veilgraph.report.disclosures import traffic
from veilgraph.report.ranking import confusion
from veilgraph.report.run_data import read_predictions, read_run
from veilgraph.runtime.store.predictions import load_predictions, save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory


@nightly
def test_the_confusion_matrix_is_a_count_over_the_test_nodes(runs: dict[str, Path]) -> None:
    run = runs["plain"]
    graph = load_party(run / "parties" / "A" / "graph.safetensors")
    assert graph.labels is not None
    assert graph.test_mask is not None
    counts: dict[tuple[str, str], int] = {}
    for row in csv.DictReader((run / "parties" / "A" / "predictions.csv").read_text().splitlines()):
        node = int(row["node"])
        if graph.test_mask[node]:
            pair = str(int(graph.labels[node])), row["class"]
            counts[pair] = counts.get(pair, 0) + 1
    found = confusion(read_predictions(read_run(RunDirectory.open(run))))
    cells = {
        (true, guess): cell for true, row in found["rows"] for guess, cell in zip(found["classes"], row, strict=True)
    }
    assert {pair: count for pair, (count, *_) in cells.items() if count} == counts
    right = sum(count for (true, guess), count in counts.items() if true == guess)
    accuracy = json.loads((run / "summary.json").read_text())["test_accuracy"]
    assert right / sum(counts.values()) == pytest.approx(accuracy)
    assert all(right == (true == guess) for (true, guess), (*_, right) in cells.items())


def test_of_many_classes_the_most_frequent_confusions_are_listed(copy: Copy) -> None:
    run = copy("plain")
    store = RunDirectory.open(run).party("A")
    held = load_predictions(store)
    wide = held.probabilities.new_zeros(len(held.classes), 14)
    wide[:, 13] = 1  # everybody is taken for the last class
    save_predictions(store, Predicted(wide), class_names=[f"class {index}" for index in range(14)])
    found = confusion(read_predictions(read_run(RunDirectory.open(run))))
    assert found["rows"] == []
    assert {taken_for for _, taken_for, *_ in found["top"]} == {"class 13"}
    assert [count for *_, count, _ in found["top"]] == sorted((of for *_, of in found["top"]), reverse=True)
    assert "The most frequent confusions." in page_of(run).text


def test_traffic_is_all_that_was_sent(runs: dict[str, Path]) -> None:
    entries = json.loads((runs["plain"] / "traffic.json").read_text())
    sent = [entry for entry in entries if entry["direction"] == "sent"]
    found = traffic(read_run(RunDirectory.open(runs["plain"])))
    assert found["total"] == human_bytes(sum(entry["bytes"] for entry in sent))
    assert {name: messages for name, _, messages, *_ in found["parties"]} == {
        party: sum(entry["messages"] for entry in sent if entry["party"] == party) for party in ("A", "B", "server")
    }
    assert found["kinds"][0][-1] == 100


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: int) -> None:
    style = (files("veilgraph.report") / "templates" / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme]))
    for ground in ("paper", "panel"):
        series = (f"series-{number}" for number in range(1, 7))
        for text in ("text", "quiet", "accent", "bad", "warn", "good", *series):
            darker, lighter = sorted(luminance(colours[name]) for name in (ground, text))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ground, text)
