"""A union of tables: what each bank's own books say becomes the graph that all of them together have."""

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from tests import nightly
from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.paradigms.apart import apart
from tests.paradigms.private import kinds_sent, paid
from tests.paradigms.union.banks import (
    ALMOST,
    NET,
    Banks,
    banks,
    by_name,
    of_twin,
    small_job,
    unlabelled,
    with_network,
)
from tests.paradigms.union.banks import job_of as in_memory
from tests.roles.federation import merge
from veilgraph.cli.app import app
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.types import PartyId
from veilgraph.graph.build import build_graph, read_table
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.facets import InputRules
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.predictions import load_predictions, name_next_nodes
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.encode import fit_encoding

SPLITS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
REVEALED = ["own-margins", "own-classes", "confirmed-edges", "column-statistics"]
NETWORK_REVEALED = ["own-margins", "own-classes", "listed-nodes", "column-statistics"]
ENDS = {"source": "payer", "source_holder": "payer bank", "target": "payee", "target_holder": "payee bank"}
EDGES = {"file": "payments.csv", "directed": True, **ENDS}


def marks(graph: PartyGraph, mask: str) -> torch.Tensor:
    found: torch.Tensor | None = getattr(graph, mask)
    return torch.zeros(graph.num_nodes).bool() if found is None else found


def write_payments(graph: PartyGraph, names: list[str], place: Path) -> None:
    with (place / "payments.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["payer", "payer bank", "payee", "payee bank"])
        for source, target in graph.edge_index.T.tolist():
            (at, payer), (to, payee) = names[source].split("/"), names[target].split("/")
            rows.writerows([[payer, at, payee, to]] * (1 + source % 2))  # some pay twice


def written(found: Banks, folder: Path, **limits: object) -> dict[PartyId, Path]:
    """Every bank's accounts, payments and party file; ids begin with the bank's name in small letters."""
    graphs, ids = found
    files = {}
    for graph in graphs:
        own, place = graph.party, folder / graph.party
        place.mkdir(parents=True)
        names = [f"{own}/{text}" for text in ids[own][: graph.common]] + ids[own][graph.common :]
        if not graph.common:
            files[own] = place / "party.yaml"
            write_payments(graph, names, place)
            party: dict[str, object] = {
                "party": own,
                "edges": [EDGES],
                "limits": {"leakage": NETWORK_REVEALED, **limits},
            }
            files[own].write_text(yaml.safe_dump(party))
            continue
        with (place / "accounts.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["account", "x", "y", "z", "bad", "split"])
            for row in range(graph.common):
                split = next((name for mask, name in SPLITS.items() if marks(graph, mask)[row]), "")
                bad = "yes" if graph.labels is not None and graph.labels[row] else "no"
                values = [repr(float(value)) for value in graph.features[row]]
                rows.writerow([names[row].split("/")[1], *values, bad, split])
        write_payments(graph, names, place)
        nodes: dict[str, object] = {
            "file": "accounts.csv",
            "id": "account",
            "features": [{"columns": ["x", "y", "z"]}],
            "label": {"column": "bad", "classes": ["no", "yes"]},
            "split": {"column": "split", "train": "train", "val": "val", "test": "test"},
        }
        if graph.labels is None:
            nodes = {key: value for key, value in nodes.items() if key not in ("label", "split")}
        revealed = REVEALED if all(each.common for each in graphs) else NETWORK_REVEALED
        allowed: dict[str, object] = {"leakage": revealed, **limits}
        party = {"party": own, "nodes": nodes, "edges": [EDGES], "limits": allowed}
        files[own] = place / "party.yaml"
        files[own].write_text(yaml.safe_dump(party))
    return files


def job_of(files: dict[PartyId, Path]) -> UnionJob:
    data = {"dataset": None, "holders": len(files), "parties": {name: str(path) for name, path in files.items()}}
    return small_job(len(files), {"data": data, "across": NET if NET in files else None})


@nightly
@pytest.mark.parametrize("network", [False, True])
def test_books_are_one_graph_and_each_bank_learns_of_its_accounts(network: bool, tmp_path: Path) -> None:
    """Some of a network's payments are within a bank, or to accounts that nobody has."""
    found = with_network(unlabelled(banks(), "B")) if network else banks()
    files = written(found, tmp_path)
    if network:
        with (files[NET].parent / "payments.csv").open("a") as file:
            file.writelines(["1,A,2,A\n", "1,A,nobody,B\n", "1,A,5,elsewhere\n"])
    job = job_of(files)
    PARADIGMS["union"].data.check_tables(job)
    run = RunDirectory.open(train(job, tmp_path / "run").path)
    expected = of_twin(in_memory(found), found)
    for _ in range(2):
        for party in "ABC":
            predictions = load_predictions(run.party(party))
            assert predictions.ids is not None
            places = [found[1][party].index(name) for name in predictions.ids]
            assert sorted(places) == list(range(len(expected[party])))
            difference = predictions.uncalibrated.double() - expected[party][torch.tensor(places)]
            assert difference.abs().max() < ALMOST
        predict(run.path)  # the same again, in rows that are drawn anew
    assert not (run.party_path(NET) / "predictions.csv").exists()
    if network:
        named = [found[1][party][0].split("/")[-1] for party in "BC"]
        assert len(predict(run.path, ids=named).probabilities) == len(named)


@nightly
def test_which_accounts_are_one_customer_s_comes_in_a_table_of_its_own(tmp_path: Path) -> None:
    """Of what A and B have of each other they make another table, and all is as it was."""
    found = banks()
    files = written(found, tmp_path)
    for party in "AB":
        payments = files[party].parent / "payments.csv"
        head, *rows = payments.read_text().splitlines()
        links = [row for row in rows if {"A", "B"} == {*row.split(",")[1::2]}]
        assert links
        payments.write_text("\n".join([head, *(row for row in rows if row not in links)]) + "\n")
        (files[party].parent / "links.csv").write_text("\n".join([head, *links]) + "\n")
        said = yaml.safe_load(files[party].read_text())
        files[party].write_text(yaml.safe_dump({**said, "edges": [EDGES, {**EDGES, "file": "links.csv"}]}))
    run = RunDirectory.open(train(job_of(files), tmp_path / "run").path)
    expected, told = of_twin(in_memory(found), found)["A"], load_predictions(run.party("A"))
    places = torch.tensor([found[1]["A"].index(name) for name in told.ids or ()])
    assert (told.uncalibrated.double() - expected[places]).abs().max() < ALMOST


@nightly
def test_what_a_table_says_that_payments_weigh_counts_at_home(tmp_path: Path) -> None:
    """Of two payments between the same accounts the sum; the network's weights count nowhere."""
    found = with_network(banks(), knows=True)
    files = written(found, tmp_path)
    for file in files.values():
        told = yaml.safe_load(file.read_text())
        file.write_text(yaml.safe_dump(told | {"edges": [{**EDGES, "factor": 20.0}]}))
    run = RunDirectory.open(train(job_of(files), tmp_path / "run").path)
    graphs = [
        replace(graph, edge_weight=20.0 * (1 + graph.edge_index[0] % 2)) if graph.common else graph
        for graph in found[0]
    ]
    expected, without = (of_twin(in_memory(each), each) for each in ((graphs, found[1]), found))
    for party in "ABC":
        predictions = load_predictions(run.party(party))
        assert predictions.ids is not None
        places = torch.tensor([found[1][party].index(name) for name in predictions.ids])
        told = predictions.uncalibrated.double()
        assert (told - expected[party][places]).abs().max() < ALMOST
        assert (told - without[party][places]).abs().max() > ALMOST


def test_whose_party_file_has_no_nodes_is_named_in_the_job(tmp_path: Path) -> None:
    found = with_network(banks())
    files = written(found, tmp_path, leakage=[*REVEALED, "listed-nodes"])
    unnamed = job_of(files).model_copy(update={"across": None})
    with refused(ConfigError, code="refused") as raised:
        train(unnamed, tmp_path / "unnamed")
    assert "its party file has no nodes" in str(raised.value)
    other = job_of(files).model_copy(update={"across": "C"})
    with refused(ConfigError, code="refused") as raised:
        train(other, tmp_path / "other")
    assert "C refuses the job: its party file has nodes" in str(raised.value)
    sealed = parse_job({"paradigm": "sealed", "data": {"parties": {name: str(files[name]) for name in ("A", NET)}}})
    with refused(ConfigError, code="refused"):
        train(sealed, tmp_path / "sealed")


@pytest.mark.parametrize("less", ["source_holder", "target_holder", "edges"])
def test_a_party_file_without_nodes_says_whose_nodes_its_edges_join(less: str, tmp_path: Path) -> None:
    edges = [{key: value for key, value in EDGES.items() if key != less}]
    said = {"party": NET, **({} if less == "edges" else {"edges": edges})}
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(said))
    with refused(ConfigError, key="nodes") as raised:
        Organisation.read(tmp_path / "party.yaml", NET)
    assert "party.yaml: nodes=null" in str(raised.value), "a rule between settings of a party file names no job"


@pytest.mark.parametrize("party", ["A", NET])
def test_check_says_how_many_edges_go_to_others(party: str, tmp_path: Path) -> None:
    (a, *others), ids = banks()
    all_pay_one = torch.stack([torch.arange(a.common), torch.full((a.common,), a.common)])  # of another's
    more = replace(a, edge_index=torch.unique(torch.cat([a.edge_index, all_pay_one], 1), dim=1))
    found = ([more, *others], ids) if party == "A" else with_network(banks())
    said = CliRunner().invoke(app, ["data", "check", str(written(found, tmp_path)[party]), "--json"])
    assert said.exit_code == 0, said.output
    graph = by_name(found)[party]
    across = (graph.edge_index >= graph.common).any(0)
    content = json.loads(said.stdout)
    assert content["nodes"] == graph.common
    assert content["edges"][0]["across"] == int((across * (1 + graph.edge_index[0] % 2)).sum())
    name, most = content["edges"][0]["hub"]
    degrees = torch.bincount(graph.edge_index.flatten())[: graph.common or graph.num_nodes]
    assert most == degrees.max() == size_of(graph, InputRules(joins_others=True)).neighbours
    assert degrees[found[1][party].index(name)] == most


@pytest.mark.parametrize("party", ["A", NET])
def test_check_says_whether_a_job_computes_over_the_node_with_the_most_edges(
    party: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network's nodes, which have an edge at a bank as well, it does not where these alone fill the range."""
    found = banks() if party == "A" else with_network(banks())
    most = size_of(by_name(found)[party], InputRules(joins_others=True)).neighbours or 0
    files = written(found, tmp_path, leakage=[*REVEALED, "listed-nodes"])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_of(files).model_dump(mode="json", exclude_unset=True)))
    for limit, fails in ((most, True), (1 << most.bit_length(), party == NET), (2 << most.bit_length(), False)):
        for place in ("sealed.inputs", "union.paradigm"):
            monkeypatch.setattr(f"veilgraph.paradigms.{place}.LARGEST_DEGREE", limit)
        arguments = ["data", "check", str(files[party]), "--job", str(tmp_path / "job.yaml"), "--json"]
        assert json.loads(CliRunner().invoke(app, arguments).stdout)["in_job"][0]["largest_degree"] == limit
        words = " ".join(CliRunner().invoke(app, arguments[:-1]).output.split())
        assert f"has the most edges, {most}, of pairs" in words
        assert f"takes {limit} at most," in words
        assert ("leave out edges of nodes like" in words) == fails
        if fails:
            with refused(DataError, key="model.max_degree"):
                train(job_of(files), tmp_path / f"run-{limit}")


@pytest.fixture
def network(tmp_path: Path) -> tuple[dict[PartyId, Path], int]:
    """Party files of three banks and of a network, of whose payments so many are between banks; and some are not."""
    found = with_network(banks())
    files = written(found, tmp_path, leakage=["own-margins", "own-classes", "listed-nodes", "column-statistics"])
    payments = files[NET].parent / "payments.csv"
    between = len(payments.read_text().splitlines()) - 1
    with payments.open("a") as file:
        file.writelines(["1,A,2,A\n", "1,A,1,A\n", "1,A,1,D\n", "1,A,1,D\n", "7,D,7,E\n", "1,A,2,\n"])
    return files, between


@nightly
def test_check_says_which_of_a_network_s_payments_a_job_uses(
    network: tuple[dict[PartyId, Path], int], tmp_path: Path
) -> None:
    files, between = network
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_of(files).model_dump(mode="json", exclude_unset=True)))
    arguments = ["data", "check", str(files[NET]), "--job", str(tmp_path / "job.yaml"), "--json"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0, said.output
    content = json.loads(said.stdout)
    (edges,), (used,) = content["edges"], content["in_job"]
    (rows,) = edges["relations"]
    assert (rows["rows"], rows["dropped"], rows["self_loops"]) == (between + 6, 1, 1)
    assert rows["duplicates"] >= 1
    assert edges["across"] == between + 3
    assert edges["between"]["A"]["A"] == 2
    assert edges["between"]["A"]["D"] == 2
    assert edges["between"]["D"] == {"E": 1}
    assert (used["across"], used["others"]) == (between, {"D": 3, "E": 1})
    words = " ".join(CliRunner().invoke(app, arguments[:-1]).output.split())
    assert f"{between:,} join nodes of two holders of job" in words
    assert "3 name others, and are left out (D 3, E 1)" in words
    assert "2 are within another holder" in words
    whole = CliRunner().invoke(app, ["check", str(tmp_path / "job.yaml")])
    assert "3 name others, and are left out (D 3, E 1)" in " ".join(whole.output.split())


def test_check_of_a_bank_says_which_of_its_payments_go_to_holders_of_a_job(tmp_path: Path) -> None:
    files = written(banks(), tmp_path)
    job = job_of({name: files[name] for name in "AB"})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True)))
    said = CliRunner().invoke(app, ["data", "check", str(files["A"]), "--job", str(tmp_path / "job.yaml"), "--json"])
    (edges,), (used,) = (json.loads(said.stdout)[key] for key in ("edges", "in_job"))
    assert used["others"] == {"C": edges["across"] - used["across"]}
    assert 0 < used["across"] < edges["across"]


def test_a_job_that_uses_no_edges_to_others_is_refused(tmp_path: Path) -> None:
    files = written(banks(), tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({"data": {"parties": {n: str(f) for n, f in files.items()}}}))
    said = CliRunner().invoke(app, ["data", "check", str(files["A"]), "--job", str(tmp_path / "job.yaml")])
    assert said.exit_code == 2
    assert "--job" in said.output


def test_other_jobs_leave_edges_to_others_out(tmp_path: Path) -> None:
    found = banks()
    own = Organisation.read(written(found, tmp_path)["A"], "A")
    table = read_table(own.settings, own.folder, None, "none")
    built = build_graph(own.settings, own.folder, table, fit_encoding(table, "none"))
    graph = by_name(found)["A"]
    inside = (graph.edge_index < graph.common).all(0)
    assert built.graph.num_nodes == graph.common
    assert built.graph.num_edges == int((inside * (1 + graph.edge_index[0] % 2)).sum())


@nightly
@pytest.mark.parametrize("trust", ["dealer", "majority"])
def test_across_organisations_each_bank_names_nodes_at_its_own_site(tmp_path: Path, trust: str) -> None:
    """Who names none takes part; a network's site has nothing to name."""
    found = with_network(banks())
    allowed = ["own-named-classes", "own-named-margins", "listed-nodes", "column-statistics"]
    files = written(found, tmp_path / "tables", leakage=allowed, trust=[trust])
    settings = union(
        parse_job(
            merge(
                job_of(files).model_dump(mode="json", exclude_unset=True),
                {"name": "banks", "named_nodes": 3, "trust": trust, "data": {"parties": None, "holders": list(files)}},
            )
        )
    )
    runs = apart(tmp_path, files, settings)
    with refused(ConfigError, code="none-named"):
        apart(tmp_path, files, settings, "predict")
    with refused(RunError, party="A"):
        name_next_nodes(runs[NET], ids=["1"])
    wanted = {party: [text.split("/")[-1] for text in found[1][party][3:5]] for party in "BC"}
    for party, ids in wanted.items():
        assert veilgraph("predict", runs[party], "--ids", ",".join(ids), "--ask").stdout.startswith("2 named")
    apart(tmp_path, files, settings, "predict")
    twin = of_twin(in_memory(found), found)
    for party, ids in wanted.items():
        told = predict(runs[party])
        assert told.ids == tuple(ids)
        assert (told.uncalibrated.double() - twin[party][3:5]).abs().max() < ALMOST
    assert len(predict(runs["A"]).nodes) == 0
    name_next_nodes(runs["B"], ids=wanted["B"])
    with refused(ConfigError, code="refused"):
        apart(tmp_path, files, settings, "predict")


@nightly
def test_a_prediction_is_of_the_books_as_they_are_now(tmp_path: Path) -> None:
    """One bank closes an account: the others' edges to it are used no more, and all the rest is predicted."""
    found = banks()
    files = written(found, tmp_path)
    train(job_of(files), tmp_path / "run")
    accounts = tmp_path / "B" / "accounts.csv"
    head, gone, *rest = accounts.read_text().splitlines()
    accounts.write_text("\n".join([head, *rest]) + "\n")
    payments = tmp_path / "B" / "payments.csv"
    closed, lines = gone.split(",")[0], payments.read_text().splitlines()
    kept = [line for line in lines if [closed, "B"] not in (line.split(",")[:2], line.split(",")[2:])]
    assert len(kept) < len(lines)
    payments.write_text("\n".join(kept) + "\n")
    before = load_predictions(RunDirectory.open(tmp_path / "run").party("B")).ids
    predict(tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    after = load_predictions(run.party("B")).ids
    assert before is not None
    assert after is not None
    assert set(before) - set(after) == {closed}
    assert len(load_predictions(run.party("A")).probabilities) == by_name(found)["A"].common


@nightly
@pytest.mark.parametrize("network", [False, True])
def test_check_foresees_of_tables_what_is_sent(network: bool, tmp_path: Path) -> None:
    """To the byte: of payments that some make twice, each pair counts once. Where a network has some of a node's edges,
    the most that a node has is in no table.
    """
    found = with_network(banks(), knows=True) if network else banks()
    files = written(found, tmp_path)
    job = job_of(files)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True)))
    said = CliRunner().invoke(app, ["check", str(tmp_path / "job.yaml"), "--costs", "--json"])
    assert said.exit_code == 0, said.output
    foreseen = {stage["name"]: stage["sent"] for stage in json.loads(said.stdout)["costs"]["stages"]}
    sizes = {graph.party: size_of(graph, job.inputs, found[1][graph.party]) for graph in found[0]}
    known = PARADIGMS["union"].session.costs(job, 0, sizes)
    assert known is not None
    assert all(foreseen[stage.name] == stage.sent for stage in known.stages if stage.name != "degrees")
    run = RunDirectory.open(train(job, tmp_path / "run").path)
    for party in files:
        log = json.loads((run.party(party).path / "traffic.json").read_bytes())
        sent = Counter[str]()
        for row in log:
            sent[row["kind"]] += row["bytes"] * (row["direction"] == "sent")
        assert foreseen["addresses"].get(party, 0) == sent["node_list"] + sent["node_places"]
        kinds = ("masked_wire", "masked_bits", "placement", "masked_rows", "mask_share", "control")
        total = sum(stage.get(party, 0) for stage in foreseen.values()) - foreseen["addresses"].get(party, 0)
        over = total - sum(sent[kind] for kind in kinds)
        assert 0 < over < foreseen["degrees"][party] if network else over == 0, party


@pytest.mark.usefixtures("short_own_models")
def test_banks_tell_symbols_across_organisations_and_out_of_tables_in_one_place(tmp_path: Path) -> None:
    """What leaves a site is lists of hashes and symbols; who may not tell them takes no part."""
    found = banks(2, accounts=40)
    allowed = ["confirmed-edges", "counterpart-symbols", "trained-counterparts"]
    bounds = {"max_epsilon": 2.0, "epsilon_unit": "label", "epsilon_neighbours": "replacement"}
    files = written(found, tmp_path / "tables", leakage=allowed, **bounds)
    content = {
        "paradigm": "averaging",
        "name": "symbols",
        "preset": "auto",
        "label_privacy": {"epsilon": 2.0},
        "averaging": {"symbols": {"allow_weak": True}},
        "timeout_s": 400,
    }
    here = parse_job({**content, "data": {"parties": {name: str(path) for name, path in files.items()}}})
    runs = {"here": train(here, tmp_path / "here").path}
    apart_job = parse_job({**content, "data": {"holders": [*files]}})
    runs |= apart(tmp_path, files, apart_job)
    for place, holders in (("here", ("A", "B")), ("A", ("A",)), ("B", ("B",))):
        run = RunDirectory.open(runs[place])
        for holder in holders:
            assert kinds_sent(run.path, holder) == {"hello", "column_hashes", "node_list", "perturbed_labels"}
            assert paid(run.path, holder) == {"labels": 1}
            told = load_predictions(run.party(holder))
            assert len(told.classes) == 40
    with pytest.MonkeyPatch.context() as patch, refused(ConfigError, code="refused"):
        patch.setattr("veilgraph.runtime.launch.site.LAST_JOB_S", 0.1)
        apart(
            tmp_path,
            files,
            parse_job({**apart_job.model_dump(exclude_unset=True), "name": "more", "label_privacy": {"epsilon": 3.0}}),
        )


@pytest.mark.usefixtures("few_trees", "short_own_models")
def test_a_bank_of_symbols_fills_in_its_own_mean_and_sends_none(tmp_path: Path) -> None:
    """No column is summed with another bank's, so ``column-statistics`` need not be accepted."""
    allowed = ["confirmed-edges", "counterpart-symbols", "trained-counterparts"]
    files = written(banks(2, accounts=40), tmp_path / "tables", leakage=allowed)
    means = dict[PartyId, float]()
    for bank, file in files.items():
        party = yaml.safe_load(file.read_text())
        party["nodes"]["features"] = [{"columns": ["x", "y", "z"], "missing": "mean"}]
        file.write_text(yaml.safe_dump(party))
        header, first, *rows = csv.reader((file.parent / "accounts.csv").read_text().splitlines())
        with (file.parent / "accounts.csv").open("w", newline="") as table:
            csv.writer(table).writerows([header, [first[0], "", *first[2:]], *rows])
        means[bank] = sum(float(row[1]) for row in rows) / len(rows)
    job = parse_job({
        "paradigm": "averaging",
        "preset": "auto",
        "label_privacy": {"epsilon": 2.0},
        "averaging": {"symbols": {"allow_weak": True}},
        "data": {"parties": {name: str(path) for name, path in files.items()}},
    })  # fmt: skip
    run = RunDirectory.open(train(job, tmp_path / "run").path)
    trained = {bank: load_predictions(run.party(bank)).uncalibrated for bank in means}
    predict(run.path)
    for bank, mean in means.items():
        assert torch.equal(load_predictions(run.party(bank)).uncalibrated, trained[bank]), "and none is compared"
        assert kinds_sent(run.path, bank) == {"hello", "column_hashes", "node_list", "perturbed_labels"}
        encoding = json.loads((run.party_path(bank) / "encoding.json").read_text())
        assert encoding["fills"][0] == pytest.approx(mean, rel=1e-5)
    assert means["A"] != pytest.approx(means["B"], rel=1e-3)
