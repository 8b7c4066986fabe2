import dataclasses

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests import nightly
from tests.errors import refused
from tests.tables.writing import FORMATS, build, party, write
from veilgraph.core.errors import DataError
from veilgraph.tables.encode import FeatureEncoding

LABEL = {"column": "y", "classes": ["no", "yes"]}
SPLIT = {"column": "part"}


def write_bank(folder):
    write(
        folder / "nodes.csv",
        {
            "id": ["u", "v", "w", "x"],
            "x": [1, 2, 3, 4],
            "y": ["no", "yes", None, "no"],
            "part": ["train", "val", None, "test"],
        },
    )
    write(folder / "edges.csv", {"a": ["u", "v", "x"], "b": ["v", "v", "w"], "w": [1, 2, 3]})


def triples(graph):
    """Edges as a sorted list of (source, target, weight)."""
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    return sorted(zip(*graph.edge_index.tolist(), weight.tolist(), strict=True))


def test_common_nodes_come_first_in_the_agreed_order(tmp_path):
    write_bank(tmp_path)
    bank = party(["x"], LABEL, SPLIT, edges=[{"weight": "w"}])
    built = build(bank, tmp_path, ["x", "u", "v"])
    assert built.ids.to_pylist() == ["x", "u", "v", "w"]
    graph = built.graph
    assert graph.num_common == 3
    assert graph.features.tolist() == [[4], [1], [2], [3]]
    assert graph.labels.tolist() == [0, 0, 1, -1]
    assert graph.num_classes == 2
    assert [mask.nonzero().flatten().tolist() for mask in (graph.train_mask, graph.val_mask, graph.test_mask)] == [
        [1],
        [2],
        [0],
    ]
    assert triples(graph) == [(0, 3, 3), (1, 2, 1), (2, 1, 1), (2, 2, 2), (3, 0, 3)]


def test_directed_and_undirected_files_join(tmp_path):
    write_bank(tmp_path)
    write(tmp_path / "more.parquet", {"a": ["u", "u"], "b": ["w", "u"]})
    graph = build(party(["x"], edges=[{"weight": "w"}, {"file": "more.parquet", "directed": True}]), tmp_path).graph
    assert triples(graph) == [(0, 0, 1), (0, 1, 1), (0, 2, 1), (1, 0, 1), (1, 1, 2), (2, 3, 3), (3, 2, 3)]


def test_later_rows_take_the_first_tables_encoding(tmp_path):
    write_bank(tmp_path)
    bank = party(["x"])
    first = build(bank, tmp_path, scaling="standard")
    write(tmp_path / "nodes.csv", {"x": [9, 1, 2, 3, 4], "id": ["new", "u", "v", "w", "x"]})
    encoding = FeatureEncoding.from_json(first.encoding.to_json())
    later = build(bank, tmp_path, ["u", "v", "w", "x"], encoding, "standard")
    assert later.encoding == first.encoding
    assert later.graph.features[:4].equal(first.graph.features)
    assert float(later.graph.features[4]) == pytest.approx((9 - 2.5) / np.sqrt(1.25))


def test_statistics_are_those_of_all_own_rows_whatever_is_common(tmp_path):
    write_bank(tmp_path)
    encodings = [build(party(["x"]), tmp_path, common, scaling="standard").encoding for common in (None, ["w"], ["u"])]
    assert encodings[0] == encodings[1] == encodings[2]


def test_an_encoding_of_other_settings_is_refused(tmp_path):
    write_bank(tmp_path)
    encoding = build(party(["x"]), tmp_path).encoding
    with refused(DataError, key="nodes.features", party="bank"):
        build(party([{"columns": "x", "missing": "zero"}]), tmp_path, encoding=encoding)
    with refused(DataError, key="data.feature_scaling", value="row", party="bank"):
        build(party(["x"]), tmp_path, encoding=encoding, scaling="row")


@dataclasses.dataclass(frozen=True)
class Drawn:
    ids: list[str]
    features: np.ndarray
    edges: list[tuple[int, int, float]]
    common: list[int]


@st.composite
def graphs(draw):
    ids = draw(st.lists(st.text("abc\"',\n 017é", min_size=1, max_size=4), min_size=1, max_size=12, unique=True))
    node = st.integers(0, len(ids) - 1)
    weight = st.floats(0, 1e6, width=32)
    numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2)
    rows = draw(st.lists(numbers, min_size=len(ids), max_size=len(ids)))
    edges = draw(st.lists(st.tuples(node, node, weight), max_size=25))
    common = draw(st.permutations(range(len(ids))))[: draw(st.integers(1, len(ids)))]
    return Drawn(ids, np.array(rows, np.float32), edges, common)


@nightly
@pytest.mark.cases(2)
@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(drawn=graphs(), directed=st.booleans())
def test_written_graphs_come_back(tmp_path, suffix, drawn, directed):
    write(tmp_path / f"n.{suffix}", {"id": drawn.ids, "p": drawn.features[:, 0], "q": drawn.features[:, 1]})
    source, target, weight = (list(part) for part in zip(*drawn.edges, strict=True)) if drawn.edges else ([], [], [])
    ends = {
        name: pa.array([drawn.ids[node] for node in nodes], pa.string())
        for name, nodes in (("a", source), ("b", target))
    }
    write(tmp_path / f"e.{suffix}", {**ends, "w": pa.array(weight, pa.float32())})
    bank = party(["p", "q"], nodes=f"n.{suffix}", edges=[{"file": f"e.{suffix}", "weight": "w", "directed": directed}])
    built = build(bank, tmp_path, [drawn.ids[node] for node in drawn.common])
    place = {name: row for row, name in enumerate(built.ids.to_pylist())}
    assert sorted(place) == sorted(drawn.ids)
    assert [place[drawn.ids[node]] for node in drawn.common] == list(range(len(drawn.common)))
    order = [place[name] for name in drawn.ids]
    np.testing.assert_array_equal(built.graph.features.to_dense().numpy()[order], drawn.features)
    wanted = [(order[a], order[b], w) for a, b, w in drawn.edges if w]
    if not directed:
        wanted += [(order[b], order[a], w) for a, b, w in drawn.edges if a != b and w]
    assert triples(built.graph) == sorted(wanted)
