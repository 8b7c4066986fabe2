"""What a sealed job opens where it says so: named nodes alone, weights of one's own columns; and what it does not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.paradigms.cutting import CutError
from tests.paradigms.sealed.dense import STANDARD, graphs_of
from tests.paradigms.sealed.programs import (
    TWIN,
    by_trust,
    of_twin,
    outcomes,
    predicting_twin,
    saved,
    small_graphs,
    small_job,
    weights,
)
from tests.roles.federation import Settings, merge
from veilgraph.api.runs import load_run
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.functions import BITS
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.inputs import own_data
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.named_nodes import NamedNodes, check_learning
from veilgraph.paradigms.sealed.networks.rows import GAIN_BITS
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE, SealedJob
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS
from veilgraph.paradigms.sealed.twin import trained_twin, twin_context
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.bounds import check_bounds
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.messages import revelation_causes
from veilgraph.runtime.launch.jobs import TrainResult, predict, train
from veilgraph.runtime.store.predictions import name_next_nodes
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

MOST = 7
NAMED: Settings = {"named_nodes": MOST, "output": "margins"}
RELEASED: Settings = {"release": "holders"}
NETWORKS: dict[str, Settings] = {
    "linear": {"model": {"network": "linear"}},
    "mlp, each": {"model": {"blocks": ["each.2"]}},
    "mlp, own and far": {"model": {"blocks": ["own", "pooled.4"]}},
    "linear, standard": merge(STANDARD, {"model": {"network": "linear", "blocks": ["neighbours", "own", "each.1"]}}),
    "mlp, standard": merge(STANDARD, {"model": {"blocks": ["own", "pooled.2", "neighbours"]}}),
}
NETWORKS = {name: merge(each, {"train": {"learning_rate": 0.125}}) for name, each in NETWORKS.items()}


# Named nodes


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_named_nodes_are_predicted_as_the_twin_does(name: str) -> None:
    asked = torch.tensor([11, 3, 28])
    for job in by_trust(small_job(3, NETWORKS[name], NAMED)):
        found = named(job, graphs_of(job), asked)
        expected = found[TWIN]
        assert expected.shape == (3, 2)
        assert float((found["A"] - expected).abs().max()) < 4e-3
        assert {party for party, told in found.items() if told is not None} == {"A", TWIN}
    job = small_job(3, NETWORKS[name], {"output": "margins"})
    assert torch.allclose(named(job, graphs_of(job), None)[TWIN][asked], expected, atol=1e-9)


def named(
    job: SealedJob, graphs: list[PartyGraph], asked: Tensor | None, links: dict[str, RecordedLink] | None = None
) -> dict[str, Any]:
    """What a prediction opens, by party, with weights that are not zero."""

    def program(party: SealedProgram) -> Tensor | None:
        party.enter(trains=False)
        rows, width = party.weights[0].shape
        first = (torch.arange(rows * width).reshape(rows, width) % 5) << WEIGHT_BITS - 3
        party.weights[0] = party._machine.constant(first, WEIGHT_BITS)
        ones = torch.ones((1, rows - 1), dtype=torch.int64)
        party.network.mean = party._machine.constant(0 * ones, BITS)
        party.network.gain = party._machine.constant(ones << GAIN_BITS, GAIN_BITS)
        return party.predict()

    return outcomes(job, graphs, program, links, trains=False, asked=asked, keeps=True)


def test_messages_tell_how_many_nodes_are_named_and_not_which() -> None:
    """Their sequence and sizes; and what is told of rows is relative to an order that is drawn anew."""
    job = small_job(2, NAMED)
    traffic, told = [], []
    for asked in (torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([29, 5])):
        links: dict[str, RecordedLink] = {}
        named(job, small_graphs(), asked, links)
        traffic.append({party: link.traffic() for party, link in links.items()})
        told += [
            message.tensor
            for message in links["B"].transcript()
            if (message.tag.kind, message.sender) == (Kind.PLACEMENT, "A")
        ][-1:]
    assert traffic[0] == traffic[1] == traffic[2]
    assert all(len(rows) == 2 for rows in told)
    assert len({tuple(rows.tolist()) for rows in told}) > 1


@pytest.mark.parametrize(
    ("settings", "of_a", "of_b"),
    [
        ({"named_nodes": 3}, set(), {"named-classes"}),
        (NAMED, set(), {"named-classes", "named-margins"}),
        (RELEASED, {"released-weights"}, {"released-weights", "predicted-classes"}),
    ],
)
def test_a_holder_is_asked_for_its_leave_by_name(settings: Settings, of_a: set[str], of_b: set[str]) -> None:
    job = small_job(2, settings)
    for party, names in (("A", of_a), ("B", of_b)):
        assert set(revelation_causes(job, party)) == names
        for name in names:
            refusing = LimitSettings(leakage=tuple(names - {name}))
            assert f"else the job reveals: {name}" in (refusal(refusing, job, party) or "")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> tuple[SealedJob, TrainResult]:
    """A run of a job that predicts named nodes alone."""
    folder = tmp_path_factory.mktemp("quiet")
    job = saved(folder / "data", small_job(2, NAMED), small_graphs())
    return job, train(job, folder / "run")


def kinds_got(run: Path, party: str, file: str) -> dict[tuple[str, str], int]:
    """What a party got in a piece of work: sender and kind → bytes of contents."""
    entries = json.loads((run / "parties" / party / file).read_text())
    return {(one["peer"], one["kind"]): one["bytes"] for one in entries if one["direction"] == "received"}


ONE_BIT = 8 + HEADER_BYTES
"""Of the share of the mask of the one bit that says whether numbers left their range."""


def test_at_the_end_of_training_nothing_is_opened(quiet: tuple[SealedJob, TrainResult]) -> None:
    _, run = quiet
    for party in ("A", "B", SERVER):
        assert "mask_share" not in {kind for _, kind in kinds_got(run.path, party, "traffic.json")}
    assert len(run.predictions.nodes) == len(run.predictions.probabilities) == 0
    figures = ("train_accuracy", "val_accuracy", "test_accuracy", "val_f1", "test_f1")
    assert [run.summary[name] for name in figures] == [None] * 5
    assert repr(load_run(run.path)) == f"Run({str(run.path)!r}): job, complete"
    page = load_run(run.path).report().read_text()
    assert "not known: named nodes alone are predicted" in page
    for party in "AB":
        lines = (run.path / "parties" / party / "disclosures.jsonl").read_text().splitlines()
        assert {name for line in lines for name in json.loads(line)["reveals"]} == set()


def test_predictions_of_named_nodes_end_where_the_job_says(quiet: tuple[SealedJob, TrainResult]) -> None:
    """Every party counts. A label holder that forgets what it has been told is refused by the others."""
    job, run = quiet
    with refused(ConfigError, key="nodes"):
        predict(run.path)
    with refused(ConfigError, key="ask"):
        name_next_nodes(run.path, [1])
    with refused(ConfigError, code="refused"):
        predict(run.path, [0, 1, 2, 3, 4, 5, 6, 7])
    asked = [4, 2, 4, 29]
    found = predict(run.path, asked)
    twin = predicting_twin(job, small_graphs(), weights(run.path), torch.tensor([4, 2, 29])).predict()
    assert twin is not None
    assert found.nodes.tolist() == asked
    assert float((found.probabilities - logits_of(twin).softmax(1)[[0, 1, 0, 2]]).abs().max()) < 4e-3
    load_run(run.path).report()
    assert kinds_got(run.path, "A", "prediction_traffic.json")["B", "mask_share"] == 3 * 2 * 8 + HEADER_BYTES + ONE_BIT
    lines = (run.path / "parties" / "B" / "disclosures.jsonl").read_text().splitlines()
    assert {name for line in lines for name in json.loads(line)["reveals"]} == {"named-classes", "named-margins"}
    with refused(ConfigError, code="refused"):
        predict(run.path, [0, 1, 2, 3, 5])
    assert len(predict(run.path, [0, 1, 2, 3]).nodes) == 4
    kept = (run.path / "parties" / "B" / "named.safetensors").read_bytes()
    for counts in ("B", SERVER):
        for party in ("A", "B", SERVER):
            path = run.path / "parties" / party / "named.safetensors"
            path.write_bytes(kept) if party == counts else path.unlink(missing_ok=True)  # refused before it wrote
        with refused(ProtocolError, code="stated", key="asked", value=1, party="A"):
            predict(run.path, [5])


def test_of_the_named_nodes_other_parties_keep_their_number_alone(tmp_path: Path) -> None:
    """Also where what one names is cut off before it is predicted: it is counted, for it may have been opened."""
    job = saved(tmp_path / "data", small_job(2, NAMED), small_graphs())
    run = train(job, tmp_path / "run")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    def cut(_: SealedProgram) -> None:
        raise CutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedProgram, "predict", cut)
        with pytest.raises(CutError):
            predict(run.path, [17, 23])
    assert (run.path / "parties" / "A" / "wanted.safetensors").is_file()
    for party in ("A", "B", SERVER):
        assert NamedNodes(job, FolderKeeper(run.path / "parties" / party)).left("A") == MOST - 2
    changed = {
        path.name
        for party in ("B", SERVER)
        for path in (run.path / "parties" / party).rglob("*")
        if path.is_file() and before.get(path) != path.read_bytes()
    }
    kept = {"named.safetensors", "disclosures.jsonl", "evidence.jsonl", "prediction_traffic.json", "software.jsonl"}
    assert changed == kept
    assert (load_tensors(run.path / "parties" / "B" / "named.safetensors")) == ({}, {"nodes": 2})


def test_a_label_holder_that_names_none_or_too_many_in_a_session_is_refused(tmp_path: Path) -> None:
    job, keeper = small_job(2, NAMED), FolderKeeper(tmp_path)
    count = NamedNodes(job, keeper)
    for stated, trains, nodes in ((0, False, 30), (MOST + 1, False, 30), (6, False, 5), (1, True, 30)):
        with refused(ProtocolError, code="stated", key="asked", value=stated, party="A"):
            count.agreed("A", stated, trains=trains, nodes=nodes)
    assert count.agreed("A", MOST, trains=False, nodes=30) == MOST
    count.use({"A": MOST})
    with refused(ProtocolError, code="stated", key="asked", value=1, party="A"):
        count.agreed("A", 1, trains=False, nodes=30)
    assert NamedNodes(small_job(), keeper).agreed("A", 0, trains=False, nodes=30) is None


def test_what_a_label_holder_states_of_nodes_is_held_to_the_job() -> None:
    job, judged = small_job(2, NAMED), small_job(2, {"train": {"select_by": "accuracy"}})

    def stated(job: SealedJob, party: str = "A", **changes: Any) -> dict[str, Hello]:
        own: dict[str, Any] = {"nodes": 30, "features": 5, "edges": 9, "neighbours": 4}
        labelled = {"classes": 3, "training": 8, "validation": 4 if job.passes.evaluates else 0}
        facts: dict[str, dict[str, Any]] = {"A": own | labelled, "B": dict(own), SERVER: {}}
        facts[party] |= changes
        return {name: Hello(job=job.hash(), **each) for name, each in facts.items()}

    check_bounds(job, stated(job, asked=MOST))
    for party, of, value in (("A", job, MOST + 1), ("B", job, 1), (SERVER, job, 1), ("A", judged, 1)):
        with refused(ProtocolError, code="stated", key="asked", value=value, party=party):
            check_bounds(of, stated(of, party, asked=value))
    bounded = small_job(2, {"model": {"max_degree": 30}})
    for of, party, value in ((job, "B", 0), (job, "B", LARGEST_DEGREE + 1), (job, SERVER, 1), (bounded, "A", 4)):
        with refused(ProtocolError, code="stated", key="neighbours", value=value, party=party):
            check_bounds(of, stated(of, party, neighbours=value))
    for name, hellos in (("training", stated(judged, training=0)), ("validation", stated(judged, validation=0))):
        with refused(ProtocolError, code="stated", key=name, value=0, party="A"):
            check_learning(judged, "A", hellos["A"])
    assert "asked" not in Hello(job="x").model_dump_json()
    assert Hello.model_validate_json(Hello(job="x", asked=3).model_dump_json()).asked == 3


# Weights of one's own columns


def one_step(program: SealedProgram) -> tuple[Any, Any]:
    program.enter(trains=True)
    program.begin()
    program.step(0)
    return program.shares(), program.release()


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_holder_gets_its_own_columns_weights_and_the_others_not(name: str) -> None:
    """As they multiply columns that are not standardised; of the first layer all but the bias is one holder's."""
    for job in by_trust(small_job(3, NETWORKS[name], RELEASED, {"train": {"evaluate_every": 1}})):
        check_released(job)


def check_released(job: SealedJob) -> None:
    graphs = graphs_of(job, nodes=40)
    found = outcomes(job, graphs, one_step)
    exact, twin = of_twin(found, WEIGHT_BITS)["weight.0"], found[TWIN][1]
    assert found.get(SERVER, (None, {}))[1] == {}
    context, data = twin_context(job, graphs)
    network = SealedProgram(PlainMachine(list(data)), context).network
    covered = torch.zeros(len(exact))
    for holder in "ABC":
        assert found[holder][1].keys() == {holder}
        parts = found[holder][1][holder]
        assert parts.keys() == twin[holder].keys() == network.parts(holder).keys()
        for name_, rows in network.parts(holder).items():
            expected = twin[holder][name_]
            assert float((parts[name_] - expected).abs().max()) < 4e-3 * max(1.0, float(expected.abs().max()))
            covered[rows] += 1
    assert covered[0] == 0
    assert bool((covered[1:] == 1).all())


def test_released_weights_are_opened_under_masks_of_their_own() -> None:
    """For each holder an opening, and shares of its masks alone, once gains and means are multiplied into them."""
    job = small_job(3, NETWORKS["mlp, each"], RELEASED, NAMED)
    graphs = small_graphs(3)
    context, _ = twin_context(job, graphs)
    context = replace(context, data={}, sizes=replace(context.sizes, asked=0))
    stages = {stage.name: stage for stage in costs_of(context, 1).stages}
    assert "predict" not in stages
    assert stages["release"].rounds == 2 * 2 + 2 * 3
    widths = {holder: 3 * (3 + 6) * columns for holder, columns in context.sizes.columns.items()}
    made = 2 * (4 * HEADER_BYTES + 16 * (sum(widths.values()) + 3 + 6))
    for holder in "ABC":
        opened = sum(2 * (HEADER_BYTES + 8 * width) for width in widths.values())
        told = sum(HEADER_BYTES + 8 * width for other, width in widths.items() if other != holder)
        assert stages["release"].sent[holder] == made + opened + told


def test_a_run_that_releases_has_a_file_at_every_holder(tmp_path: Path) -> None:
    """Of the step that is taken, which here is the first of three."""
    judged = {"train": {"select_by": "accuracy", "evaluate_every": 1}}
    job = saved(tmp_path / "data", small_job(2, NETWORKS["mlp, each"], RELEASED, NAMED, judged), small_graphs())

    def worse(self: SealedLabelHolder, _: Tensor) -> None:
        self._right = 1 - self._last / 4

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedLabelHolder, "judge", worse)
        run = train(job, tmp_path / "run")
    twin = trained_twin(job, small_graphs(), 1).release()
    for party in "AB":
        parts, facts = load_tensors(RunDirectory.open(run.path).party(party).released_path)
        assert parts.keys() == {"each.2.A", "each.2.B"}
        assert facts == {}
        assert all(float((parts[name] - twin[party][name]).abs().max()) < 2e-3 for name in parts)
    lines = (run.path / "parties" / "A" / "disclosures.jsonl").read_text().splitlines()
    assert {name for line in lines for name in json.loads(line)["reveals"]} == {"released-weights"}
    assert not (run.path / "parties" / SERVER / "released.safetensors").exists()
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("released.safetensors")}
    predict(run.path, [3])
    assert kinds_got(run.path, "B", "prediction_traffic.json")["A", "mask_share"] == ONE_BIT
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("released.safetensors")}


def test_of_released_weights_many_columns_make_training_rows_and_their_classes() -> None:
    """As the revelation says: X_Bᵀ·E is solved for the errors E of its nodes, next to zero where it is not trained on.

    What columns are divided by is over training nodes. The attacker takes it over all nodes.
    """
    job = small_job(2, {"model": {"network": "linear", "blocks": ["own"]}, "train": {"epochs": 1}}, RELEASED)
    graphs = small_graphs(columns=120, training=9)
    found = outcomes(job, graphs, one_step)
    released, x = found["B"][1]["B"]["own"], own_data(job, graphs[1]).columns["own"]
    errors = torch.linalg.lstsq(x.T, released * (256 * x.var(0, correction=0) + 1)[:, None]).solution
    assert graphs[0].train_mask is not None
    assert graphs[0].labels is not None
    assert graphs[0].train_mask[errors.abs().amax(1).topk(9).indices].all()
    trained_on = graphs[0].train_mask
    assert torch.equal(errors.argmax(1)[trained_on], graphs[0].labels[trained_on])
