"""ε of one node, or edge, from tables: accepted where values are of its own row, refused with the column where not."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about, nightly
from tests.paradigms.private import entries
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import load_party
from veilgraph.graph.settings import DataSettings
from veilgraph.privacy.aggregation import most_neighbours
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.runtime.launch.jobs import align, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_dataset

RANGE = {"low": 0, "high": 2}
LIMITS = {"leakage": [], **about.NODES, "max_epsilon": 8}


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Path]:
    """Two holders; B, which is not the label holder, accepts nothing but a bounded ε of one node."""
    paths = export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.75, seed=3)
    ours = yaml.safe_load(paths["A"].read_text(encoding="utf-8"))
    names = ["initial-embeddings", "embedding-sums", "output-embeddings", "training-rows", "perturbed-features"]
    paths["A"].write_text(yaml.safe_dump(ours | {"limits": {"leakage": names}}), encoding="utf-8")
    declare(paths["B"], scale=RANGE)
    return paths


def declare(party_file: Path, limits: dict[str, Any] | None = LIMITS, **feature: Any) -> None:
    content = yaml.safe_load(party_file.read_text(encoding="utf-8"))
    content["nodes"]["features"] = [{"columns": "x*", **feature}]
    party_file.write_text(yaml.safe_dump(content | ({} if limits is None else {"limits": limits})), encoding="utf-8")


def perturbed(parties: dict[str, Path], *changes: Settings) -> JobSettings:
    data = {"parties": {name: str(path) for name, path in parties.items()}, "label_holder": "A"}
    content = {"paradigm": "node-dp", "data": data, "train": {"epochs": 2}, "release": {"features": {"epsilon": 8.0}}}
    return parse_job(merge(content, *changes))


def summed(parties: dict[str, Path], unit: str = "edge", **privacy: Any) -> JobSettings:
    """The same, and A's sums over its edges have noise."""
    bound = {} if unit == "edge" else {"degree_bound": 3}
    return perturbed(parties, {"privacy": {"unit": unit, "epsilon_total": 8.0, "delta": 1e-4, **bound, **privacy}})


def change_row(party_file: Path, value: str) -> None:
    """Another first value in the first row of a table, of any node."""
    path = party_file.parent / "nodes.csv"
    header, first, *rest = path.read_text(encoding="utf-8").splitlines()
    cells = first.split(",")
    path.write_text("\n".join([header, ",".join([cells[0], value, *cells[2:]]), *rest]) + "\n", encoding="utf-8")


def test_a_changed_row_changes_no_other_nodes_features(parties: dict[str, Path], tmp_path: Path) -> None:
    """Through alignment and files as well. The range makes nearly all values 0, and the layout does not tell."""
    declare(parties["B"], scale={"low": 1.8, "high": 100})
    found = []
    for value in ("0.5", "1e30"):
        change_row(parties["B"], value)
        align(perturbed(parties), tmp_path / value)
        graph = load_party(tmp_path / value / "parties" / "B" / "graph.safetensors")
        assert graph.features.layout == torch.strided
        found.append(Counter(tuple(row) for row in graph.features.view(torch.int32).tolist()))
    assert (found[0] - found[1]).total() == (found[1] - found[0]).total() == 1


@pytest.mark.parametrize("named", [True, False])
def test_a_column_filled_with_a_mean_is_refused_with_its_name(
    parties: dict[str, Path], tmp_path: Path, named: bool
) -> None:
    declare(parties["B"], missing="mean", scale=RANGE)
    settings = perturbed(parties)
    says = r"own row alone: nodes\.features\.0 \(column 'x\*'\): missing=mean is computed from all rows; set missing to"
    if named:
        with pytest.raises(ConfigError, match=f"B refuses the job: .*{says} a number"):
            train(settings, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    else:  # as every other party is told
        told = refusal_of(Organisation.read(parties["B"], "B"), settings) or ""
        assert "own row alone: nodes.features.0: missing=mean is computed" in told


def test_who_is_asked_and_for_what(parties: dict[str, Path]) -> None:
    """Who learns releases nothing of its nodes' features, whatever its sums over edges have."""
    declare(parties["A"], limits=None, missing="mean")
    declare(parties["B"], limits={"leakage": list(all_revelations())}, missing="mean")
    ours, theirs = (Organisation.read(parties[name], name) for name in "AB")
    for settings in (perturbed(parties), summed(parties)):
        assert settings.inputs.per_node == ("B",)
        assert "missing=mean" in (refusal_of(theirs, settings) or "")
        assert "missing=mean" not in (refusal_of(ours, settings) or "")


def test_a_declared_range_and_fitted_scales_are_refused(parties: dict[str, Path], tmp_path: Path) -> None:
    data = {"parties": {name: str(path) for name, path in parties.items()}, "feature_scaling": "standard"}
    standard = parse_job({"data": data})
    declare(parties["B"], limits={"leakage": list(all_revelations())}, scale=RANGE)
    says = r"B refuses the job: nodes\.features\.0 \(column 'x\*'\): scale declares .*feature_scaling=standard .*leave"
    with pytest.raises(ConfigError, match=says):
        train(standard, tmp_path / "run")
    declare(parties["B"], limits={"leakage": list(all_revelations())})
    assert refusal_of(Organisation.read(parties["B"], "B"), standard) is None


def test_a_column_made_of_edges_is_no_feature_where_edges_are_protected(parties: dict[str, Path]) -> None:
    """A number of payments shows each of them, whatever ε says; its name is for its owner alone."""
    content = yaml.safe_load(parties["A"].read_text(encoding="utf-8"))
    (column,) = {str(entry["columns"]) for entry in content["nodes"]["features"]}
    content |= {"limits": {"leakage": list(all_revelations())}}
    for made, refuses in (([column], True), (["x1"], True), (["y*"], False), ([], False)):
        content["nodes"]["columns_from_edges"] = made
        parties["A"].write_text(yaml.safe_dump(content), encoding="utf-8")
        own = Organisation.read(parties["A"], "A")
        told = refusal_of(own, summed(parties)) or ""
        assert ("nodes.columns_from_edges" in told) == refuses
        assert column not in told
        assert (column in (refusal_of(own, summed(parties), named=True) or "")) == refuses
        assert "columns_from_edges" not in (refusal_of(own, perturbed(parties)) or ""), "no edge is protected"


@pytest.mark.parametrize(("normalize", "refuses"), [("mean", True), (2.0, False), (None, False)])
def test_a_mean_of_all_edges_is_refused_where_epsilon_is_of_one(
    parties: dict[str, Path], normalize: object, refuses: bool
) -> None:
    content = yaml.safe_load(parties["A"].read_text(encoding="utf-8"))
    content["edges"][0]["normalize"] = normalize
    accepts = {"leakage": list(all_revelations()), **about.EDGES, "max_epsilon": 8}
    parties["A"].write_text(yaml.safe_dump(content | {"limits": accepts}), encoding="utf-8")
    own = Organisation.read(parties["A"], "A")
    reason = refusal_of(own, summed(parties))
    assert (reason is not None) == refuses, reason
    assert not refuses or "edges.0.normalize=mean is computed from all edges; set normalize to a number" in str(reason)
    assert "normalize" not in str(refusal_of(own, perturbed(parties))), "no edge is protected"


@pytest.mark.parametrize("tables", ["there", "gone"])
def test_jobs_of_one_range_after_another_find_no_declared_value(parties: dict[str, Path], tables: str) -> None:
    """Whether a job's range holds all values is told by what the party file declares, and no row is looked at."""
    if tables == "gone":
        (parties["B"].parent / "nodes.csv").unlink()
    own, reasons = Organisation.read(parties["B"], "B"), set[str]()
    for range_ in ({"high": 0.5}, {"high": 1 - 2**-40}, {"low": 2**-40}, {"low": 0.2, "high": 0.3}):
        settings = perturbed(parties, {"release": {"features": range_}})
        said = refusal_of(own, settings, named=True)
        assert said is not None
        reasons.add(said.rpartition(": ")[2])
    assert len(reasons) == 1
    for range_ in ({}, {"low": -1.0, "high": 2.0}):
        said = refusal_of(own, perturbed(parties, {"release": {"features": range_}}), named=True)
        assert said is None or "lie outside" not in said
    content = yaml.safe_load(parties["B"].read_text(encoding="utf-8"))
    content["nodes"]["features"] = [{"columns": "x*", "boolean": True, "missing": -0.5}]
    parties["B"].write_text(yaml.safe_dump(content), encoding="utf-8")
    assert "lie outside" in (refusal_of(Organisation.read(parties["B"], "B"), perturbed(parties)) or "")
    declare(parties["B"])
    half = perturbed(parties, {"release": {"features": {"high": 0.5}}})
    undeclared = refusal_of(own.read(parties["B"], "B"), half)
    assert undeclared is None or "lie outside" not in undeclared, "rows decide"


@nightly
def test_jobs_of_one_degree_bound_after_another_find_no_degree(parties: dict[str, Path], tmp_path: Path) -> None:
    """Each tells whether a node has more neighbours than its bound, and so all of them the largest degree. With
    ``limits.most_neighbours`` smaller bounds are refused by the party file alone, and larger ones all alike."""

    def refusal(bound: int, declared: int | None) -> str:
        said: dict[str, Any] = {"leakage": list(all_revelations())}
        if declared is not None:
            said = {"leakage": [], **about.WITH_EDGES, "max_epsilon": 99, "most_neighbours": declared}
        ours = yaml.safe_load(parties["A"].read_text(encoding="utf-8")) | {"limits": said}
        parties["A"].write_text(yaml.safe_dump(ours), encoding="utf-8")
        run = tmp_path / f"{bound} {declared}"
        try:
            train(summed(parties, "node-edges", degree_bound=bound), run)
        except ConfigError as error:
            assert not run.exists() or entries(run, "A") == []
            return str(error)
        return ""

    assert refusal(999, None) == ""
    graph = load_party(RunDirectory.open(tmp_path / "999 None").party("A").graph_path).common_part()
    most = most_neighbours(graph.edge_index, graph.num_nodes)
    assert "has more than privacy.degree_bound" in refusal(most - 1, None)
    assert refusal(most, None) == ""
    smaller = {refusal(bound, most + 9).partition(" and privacy")[0] for bound in (most, most + 8)}
    assert smaller == {f"A refuses the job: limits.most_neighbours={most + 9}"}
    assert refusal(most + 9, most + 9) == ""
    larger = {refusal(bound, most - 1) for bound in (most - 1, 999)}
    assert len(larger) == 1
    assert "a node of its graph has more neighbours than limits.most_neighbours" in larger.pop()
