"""A first job for party files or names: it is valid, of few keys, and says what a holder will not accept."""

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.messy.export import export
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.horizontal import valued, write_tables
from tests.tables.writing import with_classes, write
from veilgraph.core.types import SERVER
from veilgraph.graph.dataset import load_parts
from veilgraph.protocol.job import adds_noise
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.limits import trust_of
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.tables.column_settings import beyond_own_row

LABEL = ("--label", "fraud", "--split", "confirmed_at:2024-04-15:2024-05-20")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Party files of the three exports."""
    folder = tmp_path_factory.mktemp("messy")
    found = []
    for party, tables in export(folder / "exports", customers=200).items():
        path = folder / f"{party}.yaml"
        options = LABEL if party == "bank" else ()
        words: list[str | Path] = ["data", "init", *tables, "--out", path, "--party", party, "--ids", "strip,lower"]
        assert veilgraph(*words, *options).exit_code == 0
        found.append(path)
    return found


BY_NAME = ("bank", "shop", "--label-holder", "bank")
THREE = ("telco", *BY_NAME)


def init(*words: str | Path) -> str:
    result = veilgraph("init", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@nightly
def test_a_job_of_party_files_has_few_keys_and_is_accepted(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "fraud.yaml"
    said = init(*files, "--out", out)
    assert "to decide" not in said
    assert f"veilgraph check {out}" in said
    assert yaml.safe_load(out.read_text()) == {
        "name": "fraud",
        "paradigm": "vertical",
        "data": {
            "parties": {path.stem: str(path) for path in files},
            "label_holder": "bank",
            "feature_scaling": "standard",
        },
        "train": {"select_by": "auc"},
    }
    assert "# party files" in out.read_text()
    assert veilgraph("check", out).exit_code == 0


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("unit", ["edge", "node", "node-edges"])
def test_party_files_for_an_epsilon_have_its_limit_and_what_it_asks_of_columns_and_weights(
    tmp_path: Path, unit: str
) -> None:
    """With every decision by an option."""
    files = []
    for party, tables in export(tmp_path / "exports", customers=100).items():
        files.append(tmp_path / f"{party}.yaml")
        words: list[str | Path] = [
            "data",
            "init",
            *tables,
            "--out",
            files[-1],
            "--party",
            party,
            "--ids",
            "strip,lower",
        ]
        words += ["--most-neighbours", "20"] if unit == "node-edges" else []
        words += ["--protect", unit, "--epsilon", "4", "--as-of", "2024-04-15", *(LABEL if party == "bank" else ())]
        columns = re.findall(r"--range (.+):LOW:HIGH", veilgraph(*words).stdout)
        assert bool(columns) == (unit != "edge")
        ranges = [word for column in columns for word in ("--range", f"{column}:-1:1e6")]
        assert "--range" not in veilgraph(*words, *ranges, "--replace").stdout
        if unit == "node-edges" and party == "bank":
            with_classes(files[-1], '"no", "yes"')
        settings = read_party_settings(files[-1])
        assert (settings.limits.max_epsilon, settings.limits.epsilon_unit) == (4.0, unit)
        assert bool(beyond_own_row(settings.nodes.features, "none")) == (unit == "edge")
        if party == "bank":
            assert [each.normalize for each in settings.edges] == ["mean" if unit == "node" else None]


def test_names_alone_are_of_holders_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "job.yaml"
    said = init("bank", "shop", "--label-holder", "shop", "--out", out, "--name", "across", "--select-by", "f1")
    assert "veilgraph net submit" in said
    job = read_job(out)
    assert job.data.is_apart
    assert (job.name, job.data.names, job.data.label_party) == ("across", ("bank", "shop"), "shop")
    assert job.train.select_by == "f1"


@pytest.mark.parametrize("paradigm", ["sealed", "union"])
def test_two_holders_get_a_job_without_a_dealer(paradigm: str, tmp_path: Path) -> None:
    out = tmp_path / "job.yaml"
    init(*BY_NAME, "--trust", "nobody", "--paradigm", paradigm, "--out", out)
    job = read_job(out)
    assert (job.paradigm, trust_of(job)) == (paradigm, None)
    assert "trust: nobody" in out.read_text()
    assert "veilgraph[nobody]" in out.read_text()


@pytest.mark.parametrize("trust", ["nobody", "majority"])
def test_who_names_whom_to_trust_in_another_paradigm_reads_which_to_take(trust: str, tmp_path: Path) -> None:
    options = ("--trust", trust, "--paradigm", "vertical", "--out", tmp_path / "job.yaml")
    assert "sealed or union, or" in one_error(veilgraph("init", *THREE, *options))


@pytest.mark.parametrize("trust", ["majority", "dealer"])
@pytest.mark.parametrize("options", [(), ("--paradigm", "union"), ("--protect", "edge")], ids=["sealed", "union", "ε"])
def test_who_names_whom_to_trust_gets_a_job_with_a_dealer(trust: str, options: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "job.yaml"
    init(*THREE, "--trust", trust, *options, "--out", out)
    job = read_job(out)
    assert job.paradigm == ("union" if "union" in options else "sealed")
    assert trust_of(job) == trust
    assert (job.duties.dealing == SERVER) == (trust == "dealer")
    (line,) = [each for each in out.read_text().splitlines() if each.startswith("trust:")]
    assert ("outsider deals" in line) == (trust == "dealer")


def test_a_draft_says_that_sealed_opens_less_unless_a_paradigm_was_chosen(tmp_path: Path) -> None:
    words = "which sealed jobs open to nobody"
    said = init(*BY_NAME, "--out", tmp_path / "job.yaml")
    assert words in said
    assert "--paradigm sealed" in said
    (line,) = [each for each in (tmp_path / "job.yaml").read_text().splitlines() if each.startswith("paradigm:")]
    assert words in line
    for paradigm in ("vertical", "sealed", "union"):
        assert words not in init(*BY_NAME, "--paradigm", paradigm, "--out", tmp_path / f"{paradigm}.yaml")


FEW: Final = ("--set", "train.epochs=2")
"""What a step of a sealed job sends is counted for each, which takes seconds for as many as a draft has."""


def test_a_sealed_job_has_what_its_links_need_and_says_what_is_refused(files: list[Path], tmp_path: Path) -> None:
    said = init(*files, "--paradigm", "sealed", "--out", tmp_path / "job.yaml")
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    assert job["model"] == {"edge_weights": True}
    assert (job["train"], job["output"]) == ({"select_by": "auc"}, "margins")
    assert [f"to decide: {path} refuses such a job" in said for path in files] == [False, True, True]
    error = veilgraph("check", tmp_path / "job.yaml", *FEW)
    assert error.exit_code == 1
    assert "party 'shop' refuses the job" in error.stderr
    protected = ("--paradigm", "sealed", "--protect", "edge", "--epsilon", "4", "--out", tmp_path / "private.yaml")
    said = init(*files, *protected)
    assert f"to decide: {files[1]} refuses such a job: edges.0.weight gives edges weights" in said
    assert "set model.edge_weights" not in said, "it would be refused as well"
    error = veilgraph("check", tmp_path / "private.yaml", *FEW)
    assert error.exit_code == 1
    assert "edges.0." in error.stderr


def tables(folder: Path, party: str, *options: str, classes: int = 3, **columns: list[str]) -> Path:
    """A party file of one small table."""
    folder.mkdir(exist_ok=True)
    rows = {"id": [f"n{each}" for each in range(30)], "x": [float(each % 4) for each in range(30)]}
    write(folder / f"{party}.csv", rows | {"class": [f"c{each % classes}" for each in range(30)]} | columns)
    words: list[str | Path] = ["data", "init", folder / f"{party}.csv", "--out", folder / f"{party}.yaml"]
    assert veilgraph(*words, "--party", party, *options).exit_code == 0
    return folder / f"{party}.yaml"


@pytest.mark.parametrize("paradigm", ["horizontal", "averaging"])
def test_who_accepts_a_paradigm_accepts_the_job_that_is_drafted_of_it(paradigm: str, tmp_path: Path) -> None:
    """Columns are scaled over all holders' rows, which tells of them."""
    parties = [tables(tmp_path, name, "--split", "random", "--accept", paradigm) for name in ("a", "b")]
    out = tmp_path / "job.yaml"
    assert "refuses" not in init(*parties, "--paradigm", paradigm, "--out", out)
    assert "over all holders' rows" in out.read_text()
    assert veilgraph("check", out).exit_code == 0


def test_who_accepts_node_dp_accepts_the_job_that_is_drafted_of_it(tmp_path: Path) -> None:
    """Every such job has noise, so ``init`` needs no --protect; nodes keep their values, so nothing is scaled."""
    learner = tables(tmp_path, "a", "--split", "random", "--accept", "node-dp")
    kept = ("--no-label", "--accept", "node-dp", "--protect", "node", "--epsilon", "4", "--range", "x:0:20")
    out = tmp_path / "job.yaml"
    said = init(learner, tables(tmp_path, "b", *kept), "--paradigm", "node-dp", "--epsilon", "2", "--out", out)
    assert "refuses" not in said
    assert yaml.safe_load(out.read_text())["release"]["features"]["epsilon"] == 2
    assert veilgraph("check", out).exit_code == 0


@pytest.mark.parametrize(
    "options", [("--accept", "sealed", "--protect", "node"), ("--protect", "edge"), ("--protect", "node-edges")]
)
def test_one_limit_for_life_is_not_drafted_for_jobs_of_two(options: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path / "a.csv", {"id": ["n1", "n2"], "x": [0.0, 1.0]})
    asked = ("--no-label", "--epsilon", "4", "--accept", "node-dp", *options)
    said = one_error(veilgraph("data", "init", tmp_path / "a.csv", "--out", tmp_path / "a.yaml", *asked))
    assert "--accept node-dp" in said
    assert not (tmp_path / "a.yaml").exists()


def test_a_paradigm_that_is_none_is_named_with_noise_too(tmp_path: Path) -> None:
    asked = ("--paradigm", "foo", "--protect", "edge", "--out", tmp_path / "job.yaml")
    assert "foo" in one_error(veilgraph("init", *BY_NAME, *asked))


def test_a_holder_that_deals_is_accepted_by_a_name_of_its_own(tmp_path: Path) -> None:
    """What a default sealed job reveals says nothing of whom an organisation trusts to deal."""
    sealed = ("--split", "random", "--accept", "sealed")
    parties = [tables(tmp_path, name, *(sealed if name == "a" else sealed[2:])) for name in "abc"]
    asked: list[str | Path] = [*parties, "--label-holder", "a", "--trust", "majority", "--out", tmp_path / "job.yaml"]
    said = init(*asked)
    for path in parties:
        hint = "(to accept it, draft the file again: veilgraph data init … --accept majority --replace)"
        assert f"{path} refuses such a job {hint}: limits.trust=[dealer] and trust=majority, by which c" in said
    assert "add majority to limits.trust" in said
    for path in parties:
        path.unlink()
        options = sealed if path.stem == "a" else sealed[2:]
        tables(tmp_path, path.stem, *options, "--accept", "majority")
    assert "refuses" not in init(*asked, "--replace")
    assert "refuses" not in init(*asked, "--replace", "--trust", "dealer")


def test_who_protects_edges_accepts_the_sealed_job_that_is_drafted_of_it(tmp_path: Path) -> None:
    """It declares how many neighbours a node may have, so the draft says a bound that leaves it as many."""
    protects = ("--accept", "sealed", "--protect", "edge", "--epsilon", "4")
    parties = [tables(tmp_path, name, *protects, *split) for name, split in (("a", ("--split", "random")), ("b", ()))]
    limits = [yaml.safe_load(path.read_text())["limits"] for path in parties]
    assert all(each["most_neighbours"] > 0 for each in limits)
    out = tmp_path / "job.yaml"
    asked: list[str | Path] = [*parties, "--label-holder", "a", "--protect", "edge", "--epsilon"]
    assert "refuses" not in init(*asked, "4", "--out", out)
    said = init(*asked, "5", "--out", tmp_path / "more.yaml")
    assert f"{parties[1]} refuses such a job: limits.max_epsilon=4" in said
    assert veilgraph("check", out, *FEW).exit_code == 0
    out.write_text(out.read_text().replace("max_degree: 8191", "max_degree: null"))
    refused = veilgraph("check", out, *FEW)
    assert refused.exit_code == 1
    assert "most_neighbours" in refused.stderr


@pytest.mark.parametrize("unit", ["training-record", "node"])
def test_who_protects_records_or_nodes_accepts_the_sealed_job_that_is_drafted_of_it_and_it_runs(
    unit: str, tmp_path: Path
) -> None:
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    protects = ("--protect", unit, "--epsilon", "4", "--range", "x:0:3")
    ways = (("a", ("--split", "random")), ("b", ("--no-label",)))
    parties = [tables(tmp_path, name, *protects, *way, classes=2) for name, way in ways]
    out = tmp_path / "job.yaml"
    asked: list[str | Path] = [*parties, "--protect", unit]
    assert "refuses" not in init(*asked, "--out", out)
    assert yaml.safe_load(out.read_text())["privacy"] == {"unit": unit, "epsilon_total": 4.0}
    said = init(*asked, "--epsilon", "5", "--out", tmp_path / "more.yaml")
    assert f"{parties[1]} refuses such a job: limits.max_epsilon=4" in said
    assert veilgraph("check", out).exit_code == 0
    assert veilgraph("train", out, "--out", tmp_path / "run").exit_code == 0


def test_who_protects_nodes_accepts_the_averaging_job_that_is_drafted_of_it(tmp_path: Path) -> None:
    """Of tables of a union, whose edges to others' nodes it leaves out."""
    protects = ("--protect", "node-edges", "--epsilon", "4", "--range", "x:0:3", "--most-neighbours", "9")
    whose = {"payer_bank": ["a", "b", "a"], "payee_bank": ["a", "a", "b"]}
    parties = []
    for party in ("a", "b"):
        paid = {"payer": ["n1", "n2", "n3"], "payee": ["n2", "n3", "n4"], **whose}
        write(tmp_path / f"{party}-paid.csv", {name: list(values) for name, values in paid.items()})
        more = (str(tmp_path / f"{party}-paid.csv"), *protects, "--split", "random")
        parties.append(tables(tmp_path, party, *more, classes=2))
        text = parties[-1].read_text().replace("[..., ...]", "[c0, c1]")
        parties[-1].write_text(re.sub(r"  # (label:|  column:|  classes:|split:)", r"  \1", text))
    out = tmp_path / "job.yaml"
    assert "refuses" not in init(*parties, "--protect", "node-edges", "--epsilon", "2", "--out", out)
    job = yaml.safe_load(out.read_text())
    assert (job["paradigm"], job["averaging"]) == ("averaging", {"privacy": {"epsilon_total": 2.0}})
    checked = veilgraph("check", out)
    assert checked.exit_code == 0, checked.output
    assert "2 of its edges join nodes of two holders (a 2, b 2) and are left out" in checked.output


def test_who_protects_labels_over_tables_of_a_union_gets_symbols(tmp_path: Path) -> None:
    """Drafted party files accept the drafted job; one that names fewer leaks, or less ε, does not."""
    parties, whose = [], {"payer_bank": ["a", "b", "a"], "payee_bank": ["a", "a", "b"]}
    for party in ("a", "b"):
        paid = {"payer": ["n1", "n2", "n3"], "payee": ["n2", "n3", "n4"], **whose}
        write(tmp_path / f"{party}-paid.csv", {name: list(values) for name, values in paid.items()})
        more = (str(tmp_path / f"{party}-paid.csv"), "--protect", "label", "--epsilon", "4", "--split", "random")
        accepts = ("--accept", "union") if party == "b" else ()
        parties.append(tables(tmp_path, party, *more, *accepts, classes=2))
        text = parties[-1].read_text().replace("[..., ...]", "[c0, c1]")
        parties[-1].write_text(re.sub(r"  # (label:|  column:|  classes:|split:)", r"  \1", text))
    limits = read_party_settings(parties[0]).limits
    assert {"confirmed-edges", "trained-counterparts"} <= set(limits.leakage)
    assert (limits.max_epsilon, limits.epsilon_unit) == (4.0, "label")
    wider = read_party_settings(parties[1]).limits.leakage
    assert {*limits.leakage, "union-scores", "own-classes"} <= set(wider), "it accepts a union as well"
    out = tmp_path / "job.yaml"
    assert "refuses" not in init(*parties, "--protect", "label", "--epsilon", "4", "--out", out)
    job = yaml.safe_load(out.read_text())
    assert (job["paradigm"], job["label_privacy"], job["averaging"]) == ("averaging", {"epsilon": 4.0}, {"symbols": {}})
    weak = veilgraph("check", out)
    assert (weak.exit_code, "allow_weak" in weak.stderr) == (1, True)
    checked = veilgraph("check", out, "--set", "averaging.symbols.allow_weak=true")
    assert checked.exit_code == 0, checked.output
    assert "refuses" in init(*parties, "--protect", "label", "--epsilon", "5", "--out", tmp_path / "more.yaml")
    aligned = init(*BY_NAME, "--protect", "label", "--epsilon", "4", "--out", tmp_path / "names.yaml")
    assert yaml.safe_load((tmp_path / "names.yaml").read_text())["paradigm"] == "vertical", aligned


def test_a_party_file_that_protects_edges_fits_the_job_that_does(tmp_path: Path) -> None:
    """An amount would count in no vote, margins are opened, and the ledger's δ is small enough for many pairs."""
    parties = []
    for party, label in (("a", True), ("b", False)):
        ids = [f"n{each}" for each in range(30)]
        classes = {"class": [("no", "yes")[each % 2] for each in range(30)]} if label else {}
        write(tmp_path / f"{party}.csv", {"id": ids, "x": [float(each % 4) for each in range(30)]} | classes)
        links = {"from": ids[:20], "to": ids[5:25], "amount": [1.5 + each for each in range(20)]}
        write(tmp_path / f"{party}-links.csv", links)
        files = tmp_path / f"{party}.csv", tmp_path / f"{party}-links.csv"
        parties.append(tmp_path / f"{party}.yaml")
        options = ("--label", "class", "--split", "random") if label else ()
        protects = ("--protect", "edge", "--epsilon", "4", *options)
        assert veilgraph("data", "init", *files, "--party", party, "--out", parties[-1], *protects).exit_code == 0
        assert "# weight: {column: amount" in parties[-1].read_text()
        assert read_party_settings(parties[-1]).limits.max_delta == 1e-6
    out = tmp_path / "job.yaml"
    assert "refuses" not in init(*parties, "--protect", "edge", "--epsilon", "4", "--out", out)
    checked = veilgraph("check", out, *FEW)
    assert checked.exit_code == 0, checked.stderr


def test_bad_calls_are_refused_and_nothing_is_written(files: list[Path], tmp_path: Path) -> None:
    bank, shop, telco = files
    labelled = tables(tmp_path / "two", "two")
    out = tmp_path / "job.yaml"
    calls: dict[tuple[str | Path, ...], str] = {
        (bank,): "1 holder",
        (bank, "shop"): "HOLDERS shop",
        (bank, bank): "is given twice",
        ("bank", "shop"): "--label-holder: is needed",
        ("bank", "shop", "--label-holder", "telco"): "--label-holder telco",
        (bank, shop, "--label-holder", "shop"): "--label-holder shop",
        (shop, telco): "data init --label",
        (bank, labelled): "bank, two have labels",
        (bank, shop, "--paradigm", "diagonal"): "'diagonal'",
        (bank, shop, "--select-by", "beauty"): "'beauty'",
        (bank, tmp_path / "none.yaml"): "none.yaml",
        (bank, "no!", "--label-holder", "no!"): "HOLDERS no!",
        (*BY_NAME, "--protect", "label", "--paradigm", "sealed"): "--protect label",
        ("bank", "shop", "--protect", "edge", "--paradigm", "averaging"): "--protect edge",
        (*BY_NAME, "--epsilon", "3"): "--epsilon",
        (*BY_NAME, "--epsilon", "4"): "--epsilon",
        (*BY_NAME, "--trust", "majority"): "trust=majority with 2 holders",
        (*THREE, "--trust", "nobody"): "trust=nobody with 3 holders",
        (*THREE, "--trust", "majority", "--paradigm", "vertical"): "--trust majority",
        (*THREE, "--trust", "majority", "--protect", "node-edges"): "--trust majority",
    }
    for words, said in calls.items():
        assert said in one_error(veilgraph("init", *words, "--out", out)), words
        assert not out.exists()
    copy = tmp_path / "copy.yaml"
    copy.write_text(bank.read_text())
    assert "party='bank'" in one_error(veilgraph("init", bank, copy, "--out", out))
    out.write_text("mine")
    assert "exists" in one_error(veilgraph("init", bank, shop, "--out", out))
    assert out.read_text() == "mine"
    init(bank, shop, "--out", out, "--replace")
    assert read_job(out).data.label_party == "bank"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("label",), {"label_privacy": {"epsilon": 4.0}}),
        (("label", "--paradigm", "horizontal", "--epsilon", "3"), {"label_privacy": {"epsilon": 3.0}}),
        (
            ("node", "--paradigm", "node-dp"),
            {"release": {"features": {"mechanism": "multi-bit", "epsilon": 4.0, "low": 0.0, "high": 1.0}}},
        ),
        (
            ("edge",),
            {
                "paradigm": "sealed",
                "privacy": {"epsilon_total": 4.0, "unit": "edge"},
                "model": {"edge_slots": 65536, "max_degree": 8191},
                "train": {"select_by": "last"},
            },
        ),
    ],
)
def test_what_is_to_be_protected_makes_a_private_job(
    options: tuple[str, ...], part: dict[str, object], tmp_path: Path
) -> None:
    out = tmp_path / "job.yaml"
    init(*BY_NAME, "--out", out, "--protect", *options)
    assert part.items() <= yaml.safe_load(out.read_text()).items()
    assert adds_noise(read_job(out))


def test_what_a_holder_refuses_is_told_with_what_settles_it(files: list[Path], tmp_path: Path) -> None:
    """``data init --accept`` is about default jobs: no limit on ε is written by it, nor names of a noised job."""
    sealed = init(*files, "--paradigm", "sealed", "--out", tmp_path / "sealed.yaml")
    assert "refuses such a job (to accept it, draft the file again: veilgraph data init … --accept sealed" in sealed
    noised = init(*files, "--protect", "edge", "--out", tmp_path / "noised.yaml")
    assert "refuses such a job: edges.0.weight gives edges weights" in noised
    assert "--accept" not in noised
    ids = [f"KD-{each:06}" for each in range(20)]
    write(tmp_path / "nodes.csv", {"id": ids, "x": [each / 2 for each in range(20)]})
    write(tmp_path / "links.csv", {"from": ids[:1], "to": ids[1:2]})
    tables = tmp_path / "nodes.csv", tmp_path / "links.csv"
    other = tmp_path / "other.yaml"
    assert veilgraph("data", "init", *tables, "--party", "other", "--ids", "strip,lower", "--out", other).exit_code == 0
    bare = init(files[0], other, "--protect", "edge", "--out", tmp_path / "bare.yaml")
    assert f"{other} refuses such a job: limits.leakage" in bare


def test_a_split_that_tells_protected_labels_is_told_before_a_run(files: list[Path], tmp_path: Path) -> None:
    bank = files[0].parent / "by-classes.yaml"
    by_date = next(line for line in files[0].read_text().splitlines() if line.strip().startswith("split: "))
    bank.write_text(files[0].read_text().replace(by_date, "  split: {train: 0.6, val: 0.2, test: 0.2}"))
    out = tmp_path / "job.yaml"
    said = init(bank, files[1], "--protect", "label", "--out", out)
    assert f"{bank} refuses such a job: its party file has nodes.split.stratify=true" in said
    checked = veilgraph("check", out)
    assert checked.exit_code == 1
    assert "party 'bank' refuses the job: its party file has nodes.split.stratify=true" in checked.stderr


def test_party_files_that_lie_side_by_side_have_ledgers_of_their_own(files: list[Path]) -> None:
    folders = [read_party_settings(path).ledger for path in files]
    assert len({*folders}) == len(files)
    assert all(path.stem in str(folder) for path, folder in zip(files, folders, strict=True))


@pytest.mark.parametrize("paradigm", ["horizontal", "averaging"])
def test_tables_with_numbers_to_predict_make_a_job_that_learns_these(paradigm: str, tmp_path: Path) -> None:
    out, accepts = tmp_path / "job.yaml", sorted(all_revelations())
    parts = valued(load_parts(horizontal_job(2).data, 5))
    files = write_tables(parts, tmp_path / "tables", accepts)
    said = init(*files.values(), "--paradigm", paradigm, "--out", out)
    assert "refuses" not in said
    assert yaml.safe_load(out.read_text())[paradigm] == {"task": {"name": "values"}}
    assert "# what is learnt: the tables have numbers to predict" in out.read_text()
    assert read_job(out).train.select_by == "rmse"
    assert veilgraph("check", out).exit_code == 0
