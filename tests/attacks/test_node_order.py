"""The server of a horizontal job learns which holders share a node, and not where its id stands among the others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch import Tensor

from tests.paradigms.horizontal import job
from veilgraph.core.randomness import LearningStreams, private_seed
from veilgraph.paradigms.horizontal import node_lists
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.samples.organisations import export_parts


def sorted_tables(folder: Path) -> JobSettings:
    """Holders whose tables are sorted by id, as a database gives them."""
    settings = job(2, {"train": {"epochs": 1}})
    parties = export_parts(settings.data, folder, 0, job=settings)
    for file in parties.values():
        nodes = file.parent / "nodes.csv"
        header, *rows = nodes.read_text(encoding="utf-8").splitlines()
        nodes.write_text("\n".join([header, *sorted(rows)]) + "\n", encoding="utf-8")
        assert yaml.safe_load(file.read_text(encoding="utf-8"))["nodes"]["file"] == "nodes.csv"
    data = {"parties": {name: str(file) for name, file in parties.items()}, "label_holder": "A"}
    return parse_job(settings.model_dump(mode="json") | {"data": data})


def lists(settings: JobSettings, run: Path, monkeypatch: pytest.MonkeyPatch, *, again: bool = False) -> list[list[str]]:
    """The ids behind the hashes that went to the server, as they went; ``again``: of two sessions."""
    sent: list[list[str]] = []
    hashes = node_lists.node_hashes

    def noted(key: bytes, ids: Sequence[str]) -> Tensor:
        sent.append(list(ids))
        return hashes(key, ids)

    with monkeypatch.context() as patch:
        patch.setattr(node_lists, "node_hashes", noted)
        train(settings, run, private_seeds=True)
        if again:
            predict(run)
    return sorted(sent)


def correlation(ids: Sequence[str]) -> float:
    """Between the place in a list and the rank of the id: what the server would conclude from the order."""
    return float(abs(np.corrcoef(np.arange(len(ids)), np.argsort(np.argsort(ids)))[0, 1]))


def test_the_order_of_a_list_tells_no_ranks_and_is_the_same_in_every_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = sorted_tables(tmp_path / "tables")
    found = lists(settings, tmp_path / "run", monkeypatch, again=True)
    assert found[0] == found[1]
    assert found[2] == found[3]
    for ids in (found[0], found[2]):
        assert len(ids) > 100
        assert correlation(ids) < 5 / len(ids) ** 0.5
        assert correlation(sorted(ids)) == pytest.approx(1)
    ids = found[0]
    orders = [LearningStreams(private_seed(), "A").order("nodes", ids) for _ in range(2)]
    assert orders[0] != orders[1], "another private seed is another order"
    monkeypatch.setattr(LearningStreams, "order", lambda self, purpose, ids: range(len(ids)))
    assert correlation(lists(settings, tmp_path / "control", monkeypatch)[0]) == pytest.approx(1)
