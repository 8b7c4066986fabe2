"""Who is trained on is sent in the clear beside private labels: it must not be a function of them.

The game of local differential privacy: an attacker knows all labels but one, the party file, every id, and which
nodes the splits hold. From a split that takes its share of every class it finds the label each time.
"""

import csv
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from tests.errors import refused
from tests.paradigms.local import kept, sent
from tests.paradigms.local_tables import COMMON, party_file, tables
from tests.roles.local_parties import BY_NODE, PRIVATE_LABELS, local_job
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams, private_seed
from veilgraph.graph.dataset import load_whole
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.nodes import draw_splits, read_nodes
from veilgraph.tables.settings import SplitFractions

FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25}
CLASSES = ("no", "yes")
GAMES = 24


def party(folder: Path, labels: Sequence[int], *, stratify: bool) -> Path:
    """Tables with so many labelled nodes, written by whoever knows or guesses the labels."""
    folder.mkdir(exist_ok=True)
    with (folder / "nodes.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[f"n{node:03}", 1.0, "" if label < 0 else CLASSES[label]] for node, label in enumerate(labels)]
        csv.writer(file).writerows([["id", "x", "kind"], *rows])
    label = {"column": "kind", "classes": list(CLASSES)}
    nodes = {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x"]}], "label": label}
    content = {"party": "C", "nodes": nodes | {"split": FRACTIONS | {"stratify": stratify}}}
    (folder / "party.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return folder / "party.yaml"


def splits(file: Path, streams: LearningStreams | None = None) -> list[int]:
    found = read_nodes(read_party_settings(file), file.parent, streams=streams).splits
    assert found is not None
    return [int(place) for place in found]


def guessed(folder: Path, draw: random.Random, *, stratify: bool) -> bool:
    """One game: whether the attacker names the label that it does not know."""
    labels = [draw.randrange(2) for _ in range(80)]
    target = draw.randrange(80)
    seen = splits(party(folder, labels, stratify=stratify), LearningStreams(private_seed(), "C"))
    fitting = [
        guess
        for guess in range(2)
        if splits(party(folder, [*labels[:target], guess, *labels[target + 1 :]], stratify=stratify)) == seen
    ]
    return (fitting or [draw.randrange(2)])[0] == labels[target]


def test_a_split_by_classes_gives_the_label_away_and_one_by_id_does_not(tmp_path: Path) -> None:
    draw = random.Random(0)
    by_class = sum(guessed(tmp_path, draw, stratify=True) for _ in range(GAMES))
    by_id = sum(guessed(tmp_path, draw, stratify=False) for _ in range(GAMES))
    assert by_class == GAMES
    assert abs(by_id - GAMES / 2) < 4 * (GAMES / 4) ** 0.5


def test_no_label_moves_any_node_from_its_split(tmp_path: Path) -> None:
    """Whatever the secret: not even who knows it learns a label from the splits."""
    draw = random.Random(1)
    for streams in (None, LearningStreams(7, "C"), LearningStreams(private_seed(), "C")):
        labels = [draw.randrange(2) for _ in range(200)]
        before = splits(party(tmp_path, labels, stratify=False), streams)
        assert {0, 1, 2} == set(before)
        for _ in range(5):
            others = [draw.randrange(2) for _ in labels]
            assert splits(party(tmp_path, others, stratify=False), streams) == before
        blank = [-1 if node % 3 else label for node, label in enumerate(labels)]
        after = splits(party(tmp_path, blank, stratify=False), streams)
        assert all(new == (-1 if node % 3 else old) for node, (old, new) in enumerate(zip(before, after, strict=True)))


def test_the_draw_by_id_has_its_shares_and_depends_on_the_secret_the_seed_and_the_id_alone() -> None:
    fractions = SplitFractions(train=0.5, val=0.2, test=0.1, stratify=False)
    ids, labels = [str(node) for node in range(20_000)], np.zeros(20_000, np.int32)
    streams = LearningStreams(private_seed(), "C")

    def drawn(ids: Sequence[str] = ids, fractions: SplitFractions = fractions, of: LearningStreams = streams):
        return draw_splits(labels[: len(ids)], fractions, "C", ids, of)

    found = drawn()
    assert np.abs(np.bincount(found + 1, minlength=4) / 20_000 - (0.2, 0.5, 0.2, 0.1)).max() < 0.02
    assert (drawn(ids[::-1])[::-1] == found).all()
    assert (drawn(ids[5000:]) == found[5000:]).all()
    for other in (
        drawn(of=LearningStreams(private_seed(), "C")),
        drawn(fractions=fractions.model_copy(update={"seed": 1})),
        drawn([f"x{name}" for name in ids]),
    ):
        assert (other != found).mean() > 0.5


def test_with_one_key_a_node_of_two_holders_is_in_the_same_split_at_both() -> None:
    """Without it about half of those that one trains on are validation or test nodes of the other."""
    fractions = SplitFractions(train=0.5, val=0.2, test=0.3, stratify=False)
    keyed = fractions.model_copy(update={"key": "agreed among the banks"})
    ids = [f"n{node}" for node in range(4000)]

    def drawn(of: SplitFractions, party: str, ids: Sequence[str]) -> dict[str, int]:
        streams, labels = LearningStreams(private_seed(), party), np.zeros(len(ids), np.int32)
        return dict(zip(ids, draw_splits(labels, of, party, ids, streams).tolist(), strict=True))

    one, other = drawn(keyed, "A", ids[:3000]), drawn(keyed, "B", ids[:999:-1])
    assert all(one[each] == other[each] for each in ids[1000:3000])
    assert np.abs(np.bincount([*one.values()], minlength=3) / 3000 - (0.5, 0.2, 0.3)).max() < 0.04
    for of in (fractions, keyed.model_copy(update={"key": "another one of theirs"})):
        apart = drawn(of, "B", ids)
        assert sum(one[each] != apart[each] for each in ids[:3000]) > 1500


@pytest.mark.parametrize(("stratify", "key"), [(True, "agreed among the banks"), (False, "short")])
def test_a_key_is_long_and_of_a_split_by_id(stratify: bool, key: str) -> None:
    with pytest.raises(ValidationError):
        SplitFractions(train=0.5, val=0.2, test=0.3, stratify=stratify, key=key)


def stratified(folder: Path, *, stratify: bool) -> JobSettings:
    """The job on three organisations' tables in which C releases its labels."""
    settings = tables(folder, {"release": {"labels": {"holder": "C", "epsilon": 0.1}}}, labels_at="C")
    file = party_file(settings, "C")
    content = yaml.safe_load(file.read_text())
    content["nodes"]["split"] = FRACTIONS | ({} if stratify else {"stratify": False})
    content["nodes"]["features"] = [{"columns": [f"x{column}" for column in (4, 5, 6, 7)]}]
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return settings


def test_a_holder_does_not_release_labels_with_a_split_by_classes(tmp_path: Path) -> None:
    with refused(ConfigError, code="refused", party="C") as caught:
        train(stratified(tmp_path, stratify=True), tmp_path / "run")
    assert "nodes.split.stratify=true" in str(caught.value)
    assert "set nodes.split.stratify to false" in str(caught.value)
    assert not (tmp_path / "run").exists(), "ids were compared first"


def test_tables_that_were_kept_with_a_split_by_classes_release_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run has them that an earlier release of veilgraph aligned."""
    settings = stratified(tmp_path, stratify=True)
    with monkeypatch.context() as patch:
        patch.setattr("veilgraph.protocol.aligning.split_by_labels", lambda job, party: "")
        with refused(ConfigError, code="refused", party="C"):
            train(settings, tmp_path / "run")
    with refused(ConfigError, code="refused", party="C"):
        resume(tmp_path / "run")
    assert not sent(tmp_path / "run", "C")


def test_what_leaves_is_drawn_by_the_secret_of_the_run(tmp_path: Path) -> None:
    settings = stratified(tmp_path, stratify=False)
    masks = []
    for name, private in (("one", True), ("other", True)):
        run = train(settings, tmp_path / name, private_seeds=private)
        labels = kept(run.path)["labels"]
        assert labels.shape == (COMMON, 2)
        store = RunDirectory.open(run.path).party("C")
        ids = (store.ids() or [])[:COMMON]
        fractions = SplitFractions(**FRACTIONS, stratify=False)
        streams = LearningStreams(store.seed(), "C")
        drawn = draw_splits(np.zeros(COMMON, np.int32), fractions, "C", ids, streams)
        assert labels[:, 1].tolist() == [{0: 1, 1: 2}.get(place, 0) for place in drawn.tolist()]
        masks.append(dict(zip(ids, drawn.tolist(), strict=True)))
        predict(run.path)
        assert torch.equal(kept(run.path)["labels"], labels)
    assert masks[0] != masks[1]


@pytest.mark.parametrize("data", [{}, {"split": [0.5, 0.25, 0.25]}], ids=["its own split", "shares of every class"])
def test_a_data_sets_labels_are_not_released_with_a_split_by_classes(tmp_path: Path, data: dict[str, object]) -> None:
    job = local_job(2, PRIVATE_LABELS, {"data": data, "train": {"epochs": 2}})
    with refused(ConfigError, code="refused", key="data.split", party="B"):
        train(job, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    by_node = local_job(2, PRIVATE_LABELS, {"data": BY_NODE, "train": {"epochs": 2}})
    assert kept(train(by_node, tmp_path / "run").path)["labels"].shape[1] == 2
    whole = load_whole(by_node.data, "B", by_node.seed)
    fractions = SplitFractions(**FRACTIONS, stratify=False, seed=by_node.seed)
    drawn = draw_splits(np.zeros(len(whole.features), np.int32), fractions, "synthetic")
    assert whole.train_mask is not None
    assert whole.train_mask.tolist() == (drawn == 0).tolist(), "of its place alone, whatever its label"
    with refused(ConfigError, key="stratify", value=False):
        local_job(2, {"data": {"stratify": False}})
