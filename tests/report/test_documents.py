"""Documents for compliance: each fact is its record's, what is not recorded is said, and no text forges a line."""

import hashlib
import html
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import one_error, usage_error, veilgraph
from tests.deploy.small_project import bank_and_shop
from tests.errors import refused
from tests.paradigms.runs import saved_job
from tests.report.conftest import part_of
from tests.report.findings import audit, finding
from tests.report.made import study
from tests.roles.federation import merge
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.graph.party import load_party
from veilgraph.protocol.consent import Entry, Journal
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.report.documents import filled, write_files
from veilgraph.report.run_data import read_run
from veilgraph.report.tables import markdown
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.predictions import load_predictions, save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.runtime.store.session_log import installed_software

NAMES = ("dpia", "model-card", "register", "technical")
TO_ADD = "- **To be added:** "
SEALED: dict[str, Any] = {
    "name": "sealed",
    "paradigm": "sealed",
    "data": {"dataset": "synthetic", "holders": 2},
    "model": {"network": "linear", "edge_slots": 4096},
    "train": {"epochs": 2, "patience": None, "select_by": "last"},
    "privacy": {"unit": "edge", "epsilon_total": 4},
}
PERTURBED: dict[str, Any] = {
    "name": "perturbed",
    "train": {"epochs": 2, "select_by": "last", "patience": None},
    "label_privacy": {"epsilon": 2.0},
}
HOSTILE = (
    "x\n# Forged\n| a | b |\n- **To be added:** y | z\\| <script>`1`</script> \u2028 ~~_s_~~ [l](u) {intro} ? --> "
)

Table = list[list[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Complete runs: sealed and perturbed with ε, vertical without."""
    folder = tmp_path_factory.mktemp("documents")
    jobs: dict[str, JobSettings] = {
        "sealed": parse_job(SEALED),
        "vertical": saved_job(folder / "data", {"name": "vertical", "train": {"epochs": 3}}),
        "perturbed": saved_job(folder / "more", PERTURBED),
    }
    for name, job in jobs.items():
        train(job, folder / name)
    return {name: folder / name for name in jobs}


@pytest.fixture
def copied(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: Path(shutil.copytree(made[name], tmp_path / name))


def documents(run: Path, party_file: Path | None = None) -> dict[str, str]:
    return {name: each.decode() for name, each in filled(read_run(RunDirectory.open(run)), NAMES, party_file).items()}


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next."""
    (found,) = re.findall(rf"(?ms)^#+ {re.escape(heading)}[^\n]*\n(.*?)(?=^#|\Z)", text)
    return str(found)


def tables(text: str) -> list[Table]:
    """The tables in a text as readers see them, headings left out."""
    blocks = re.findall(r"(?m)(?:^\|.*\n)+", text + "\n")
    return [[cells(line) for line in block.splitlines()[2:]] for block in blocks]


def cells(line: str) -> list[str]:
    found = re.split(r"(?<!\\)\|", line)[1:-1]
    return [html.unescape(re.sub(r"\\([^\w\s])", r"\1", each.strip())) for each in found]


def lines_of(run: Path, name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(run.glob(f"parties/*/{name}")) for line in path.read_text().splitlines()
    ]


def changed(path: Path, change: Callable[[Any], object]) -> None:
    """Change a record: JSON, or the last line of lines of it."""
    *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    content = json.loads(last)
    change(content)
    path.write_text("\n".join([*before, json.dumps(content)]) + "\n")


# Facts


@pytest.mark.parametrize("name", ["sealed", "vertical"])
def test_what_each_party_sent_is_what_its_record_has(name: str, made: dict[str, Path]) -> None:
    written, records = documents(made[name]), lines_of(made[name], "disclosures.jsonl")
    sums: Counter[tuple[str, str]] = Counter()
    for record in records:
        sums[record["what"], record["why"]] += record["messages"]
    for text in (written["dpia"], written["register"]):
        (sent,) = tables(section(text, "What each party sent") if text is written["dpia"] else section(text, "3. What"))
        shown: Counter[tuple[str, str]] = Counter()
        for what, _, ways, work, count, _, epsilon, why in sent:
            shown[what, why] += int(count.replace(",", ""))
            pairs = {(each["party"], each["to"]) for each in records if (each["what"], each["why"]) == (what, why)}
            assert {
                (by, to) for way in ways.split("; ") for by, tos in [way.split(" → ")] for to in tos.split(", ")
            } <= pairs
            assert work == "train"
            assert (epsilon != "none recorded") == any(
                each["epsilon_total"] is not None for each in records if each["why"] == why and each["what"] == what
            )
        assert shown == sums
    (traffic,) = tables(section(written["technical"], "Computational resources"))
    entries = json.loads((made[name] / "traffic.json").read_text())
    assert {party: int(count.replace(",", "")) for party, count, _ in traffic} == {
        party: sum(each["messages"] for each in entries if (each["party"], each["direction"]) == (party, "sent"))
        for party in ("A", "B", "server")
    }


@pytest.mark.parametrize("name", ["sealed", "vertical"])
def test_job_scores_classes_sessions_and_hashes_are_those_of_the_files(name: str, made: dict[str, Path]) -> None:
    run, written = made[name], documents(made[name])
    settings, summary = RunDirectory.open(run).settings, json.loads((run / "summary.json").read_text())
    for text in written.values():
        assert f"- Job: {name}, paradigm {name}, SHA-256 of its settings {settings.hash()}\n" in text
        (files,) = tables(section(text, "Records used") if "## Records" in text else text[text.index("Records used") :])
        assert dict(files) == {file: hashlib.sha256((run / file).read_bytes()).hexdigest() for file, _ in files}
        assert {"job.yaml", "summary.json", "parties/A/disclosures.jsonl", "parties/server/model.safetensors"} <= {
            file for file, _ in files
        }
        assert not {"seed.json", "ledger_place.json"} & {Path(file).name for file, _ in files}, "these are secret"
    (scores,) = tables(section(written["model-card"], "Metrics"))
    splits = ("train", "val", "test")
    assert scores[0][1:4] == [f"{100 * summary[f'{split}_accuracy']:.1f} %" for split in splits]
    (figures,) = tables(section(written["model-card"], "Test figures"))
    assert figures[0][1] == scores[0][3]
    low, high = (float(each) for each in re.findall(r"[\d.]+", figures[0][2]))
    assert low <= 100 * summary["test_accuracy"] <= high
    graph, found = load_party(run / "parties/A/graph.safetensors"), load_predictions(RunDirectory.open(run).party("A"))
    assert graph.labels is not None
    assert graph.test_mask is not None
    true, taken = graph.labels[graph.test_mask], found.classes[graph.test_mask]
    (classes,) = tables(section(written["model-card"], "Figures by class"))
    for place, (label, count, recall, precision) in enumerate(classes):
        right = int(((true == place) & (taken == place)).sum())
        assert (label, count) == (str(place), str(int((true == place).sum())))
        assert recall.startswith(f"{100 * right / int(count):.1f} %")
        assert precision.startswith(f"{100 * right / int((taken == place).sum()):.1f} %")
    (sessions, job) = tables(section(written["technical"], "6. Changes") + section(written["technical"], "Settings of"))
    assert {(work, party) for _, work, party in sessions} == {("train", party) for party in ("A", "B", "server")}
    content = yaml.safe_load((run / "job.yaml").read_text())
    said = dict(job)
    assert (said["seed"], said["train.epochs"]) == (str(content["seed"]), str(content["train"]["epochs"]))
    assert len(said) > 40
    (signed,) = tables(section(written["dpia"], "Signed records"))
    assert [row[0] for row in signed] == ["A", "B", "server"]
    for party, statements, newest, sign, by in signed:
        told = [json.loads(line) for line in (run / "parties" / party / "evidence.jsonl").read_text().splitlines()]
        own = [each["statement"] for each in told if each.get("statement", {}).get("party") == party]
        assert (statements, newest, sign) == (str(len(own)), own[-1]["time"], "no")
        assert by.split("; ") == sorted({"A", "B", "server"} - {party})


def test_what_epsilon_came_to_is_what_the_ledgers_have(made: dict[str, Path]) -> None:
    text = section(documents(made["sealed"])["dpia"], "Differential privacy")
    accounts, terms = tables(text)
    for holder, releases, one, total, budget in accounts:
        kept = json.loads((made["sealed"] / "parties" / holder / "ledger.json").read_text())
        assert releases == (", ".join(f"{name} {count}" for name, count in kept["releases"].items()) or "none")
        assert (float(one), float(total)) == (kept["epsilon_release"], kept["epsilon_total"])
        assert budget == ("none recorded" if kept["budget"] is None else f"{kept['budget']:g}")
    assert dict(terms)["unit"].startswith("one edge")


def test_findings_are_those_of_the_audit(copied: Callable[[str], Path]) -> None:
    run, report = copied("vertical"), audit(job="vertical")
    (run / "audit.json").write_text(json.dumps(report))
    held = [each for each in report["findings"] if each["passed"] is not None]
    failed = [each for each in held if not each["passed"]]
    for name in ("dpia", "model-card"):
        text = section(documents(run)[name], "What attacks found")
        assert f"Findings: {len(report['findings'])}. Of these {len(held)} had a limit to keep" in text
        assert f"and {len(failed)} failed. Verdict: failed." in text
        found, skipped = tables(text)
        assert sorted(row[:2] for row in found) == sorted(
            [each["attack"], each["evidence"]] for each in report["findings"]
        )
        (exceeded,) = [row for row in found if row[0] == "link-supervised"]
        assert exceeded[2].startswith("A against B: edges")
        assert exceeded[3].startswith("AUC 0.660 [0.640, 0.680]; without the view 0.655")
        assert exceeded[5] == "above the limit of 0.6"
        assert skipped == [["C", "label-norm", "C receives no gradient in this job"]]


def test_the_ledger_for_life_is_added_up_over_runs(made: dict[str, Path], tmp_path: Path) -> None:
    def life(run: Path) -> list[str]:
        (rows,) = tables(section(documents(run)["dpia"], "Ledgers for life"))
        return {holder: cells for holder, *cells in rows}["A"]

    assert life(made["perturbed"]) == ["2", "δ = 0.0001, unit label, replacement", "none", "1"]
    again = RunDirectory.open(made["perturbed"]).settings
    train(
        parse_job(merge(again.model_dump(mode="json"), {"name": "more", "label_privacy": {"epsilon": 3.0}})),
        tmp_path / "b",
    )
    assert life(made["perturbed"])[::3] == ["5", "2"]
    assert "None is recorded." in section(documents(made["vertical"])["dpia"], "Ledgers for life")


RECORDS: dict[str, tuple[str, Callable[[Any], object], str]] = {
    "disclosure": ("parties/B/disclosures.jsonl", lambda record: record.update(what="a word"), "| a word |"),
    "score": ("summary.json", lambda record: record.update(test_accuracy=0.125), "12.5 %"),
    "ledger": ("parties/B/ledger.json", lambda record: record.update(epsilon_total=3.5), "| 3.5 |"),
    "audit": ("audit.json", lambda record: record["findings"][0].update(attack="known"), "| known |"),
    "drift": ("parties/A/drift.json", lambda record: record["moved"].append({"name": "income"}), "income"),
    "comparison": ("compared.json", lambda record: record["A alone"].update(test_accuracy=0.625), "62.5 %"),
    "software": ("parties/A/software.jsonl", lambda record: record["software"].update(A={"torch": "9"}), "torch 9"),
}


@pytest.mark.parametrize("record", RECORDS)
def test_another_record_is_another_document(record: str, copied: Callable[[str], Path]) -> None:
    run = copied("sealed")
    (run / "audit.json").write_text(json.dumps(audit(job="sealed", paradigm="sealed")))
    (run / "compared.json").write_text(json.dumps({"A alone": {"test_accuracy": 0.5}}))
    drift = {"made_at": "2026-01-02T03:04:05+00:00", "compared": 3, "moved": []}
    (run / "parties/A/drift.json").write_text(json.dumps(drift))
    stated = {"time": "2026-01-02T03:04:05+00:00", "work": "train", "software": {"A": {"torch": "2"}}}
    (run / "parties/A/software.jsonl").write_text(json.dumps(stated) + "\n")
    file, change, shown = RECORDS[record]
    before = documents(run)
    changed(run / file, change)
    after = documents(run)
    assert any(shown not in before[name] and shown in after[name] for name in NAMES)
    for name in NAMES:
        assert (before[name] == after[name]) == (f"| {file} |" not in before[name])


def test_what_the_job_says_of_itself_takes_the_place_of_a_blank(copied: Callable[[str], Path]) -> None:
    run, said = copied("vertical"), {"purpose": "finds fraud", "retention": "one year", "roles": "the bank controls"}
    blanks = {name: text.count(TO_ADD) for name, text in documents(run).items()}
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"record": said})))
    after = documents(run)
    for name, key in (
        ("dpia", "purpose"),
        ("model-card", "retention"),
        ("register", "roles"),
        ("technical", "purpose"),
    ):
        assert f"- {key.capitalize()}: {said[key]}\n" in after[name]
    assert {name: blanks[name] - text.count(TO_ADD) for name, text in after.items()} == {
        **{"dpia": 3, "model-card": 2},
        **{"register": 3, "technical": 3},
    }
    assert all(min(blanks.values()) > 5 for _ in NAMES)


def test_what_a_run_lacks_is_said(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "none", parse_job({"data": {"dataset": "synthetic"}}))
    text = "\n".join(documents(tmp_path / "none").values())
    for words in (
        markdown(f"No audit is recorded: run veilgraph audit {tmp_path / 'none'}."),
        "No comparison is recorded.",
        "Nothing has been trained in this run yet.",
        "Software: none recorded",
        "This job has no differential privacy.",
    ):
        assert words in text
    for heading in ("Ledgers for life", "Signed records", "Approvals", "What each party sent"):
        assert "None is recorded." in section(documents(tmp_path / "none")["dpia"], heading)


def test_errors_of_attacks_and_a_restricted_audit_are_in_documents(copied: Callable[[str], Path]) -> None:
    run, report = copied("vertical"), audit(job="vertical")
    report["skipped"][0] |= {"why": "ValueError: no root", "raised": True}
    (run / "audit.json").write_text(json.dumps({**report, "attacks": ["epsilon"]}))
    text = documents(run)["dpia"]
    assert "ended with an error: ValueError: no root" in text
    assert "Only a part was asked for: attacks epsilon. What all others would find is not known." in text


def test_the_next_step_has_its_argument_and_software_is_recorded_on_one_machine(made: dict[str, Path]) -> None:
    text = documents(made["vertical"])
    assert markdown(f"No comparison is recorded: run veilgraph compare {made['vertical']}.") in text["dpia"]
    versions = ", ".join(f"{name} {version}" for name, version in list(installed_software().items())[:2])
    for name in NAMES[:2]:
        assert markdown(f"Software: all parties with {versions}") in text[name]
    duties = [line for line in text["register"].splitlines() if line.startswith(("| A |", "| server |"))]
    assert len([line for line in duties if all(markdown(one) in line for one in versions.split(", "))]) == 2


# Part of a run


def party_file(folder: Path, party: str = "B", **limits: object) -> Path:
    content = {"party": party, "nodes": {"file": "n.csv", "id": "id", "features": [{"columns": "x"}]}, "limits": limits}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "party.yaml").write_text(yaml.safe_dump(content))
    return folder / "party.yaml"


def test_one_partys_part_shows_that_part_alone(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = part_of(copied("vertical"), "B")
    written = documents(run)
    assert "Parts here: B. Parts elsewhere, of which nothing is shown: A and server\n" in written["dpia"]
    (sent,) = tables(section(written["dpia"], "What each party sent"))
    assert {way.split(" → ")[0] for row in sent for way in row[2].split("; ")} == {"B"}
    assert "run veilgraph net submit JOB.yaml --work audit." in written["dpia"]
    assert tables(section(written["model-card"], "Metrics")) == []
    assert "the scores are at A" in section(written["model-card"], "Metrics")
    (roles,) = tables(section(written["register"], "2. Who"))
    assert [row[4] for row in roles] == [
        "at the party: no part is here",
        "in this directory",
        "at the party: no part is here",
    ]
    assert "None is recorded: --party names a party file." in written["dpia"]
    limits = tables(section(documents(run, party_file(tmp_path, max_rounds=3))["dpia"], "Limits"))[0]
    assert ["B", "limits.max_rounds", "3"] in limits
    assert ["B", "consent.approval", "limits"] in limits
    with refused(ConfigError, key="party", value="A"):
        documents(run, party_file(tmp_path, "A"))
    job = yaml.safe_load((run / "job.yaml").read_text())
    paths = {"A": str(tmp_path / "none.yaml"), "B": str(party_file(tmp_path, max_rounds=5))}
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"data": {"holders": 2, "parties": paths}})))
    assert ["B", "limits.max_rounds", "5"] in tables(section(documents(run)["dpia"], "Limits"))[0]


@pytest.fixture(scope="module")
def site(made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Kit, Path]:
    """B's kit, and its part of a run in it, which a person approved after a refusal."""
    folder = tmp_path_factory.mktemp("site")
    kit = bank_and_shop(folder / "project", holders=["A", "B"], dealer="notary")["B"]
    run = part_of(Path(shutil.copytree(made["vertical"], kit.runs / "vertical")), "B")
    kit.prepare(SiteFile(party_file=party_file(folder / "tables", max_rounds=7), runs=kit.runs))
    job, time = RunDirectory.open(run).settings.hash(), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with (journal := Journal(kit.consent)).held():
        journal.append(Entry(time=time, what="job", id="1", settings="f" * 64, work="train"))
        journal.append(Entry(time=time, what="asked", id="2", settings=job, work="train"))
        journal.append(Entry(time=time, what="refused", of="2", reason="not before | May"))
        journal.append(Entry(time=time, what="approved", of="1"))
    file = run / "parties/B/evidence.jsonl"
    first = file.read_text().splitlines()[0]
    begins = json.loads(first)
    begins["begins"].update(roots=["a certificate"], names={"server": "notary"})
    file.write_text(json.dumps(begins) + "\n")
    return kit, run


def test_in_a_kit_endpoints_limits_and_answers_of_people_are_known(site: tuple[Kit, Path]) -> None:
    kit, run = site
    written = documents(run)
    (endpoints,) = tables(section(written["register"], "Endpoints"))
    assert endpoints == [["deals", "notary"], ["relays messages", "localhost"], ["broker", kit.broker_addresses[0]]]
    (roles,) = tables(section(written["register"], "2. Who"))
    assert [row[2] for row in roles] == ["A", "B", "notary"]
    assert ["B", "limits.max_rounds", "7"] in tables(section(written["dpia"], "Limits"))[0]
    (answers,) = tables(section(written["technical"], "Human oversight"))
    assert [row[1:] for row in answers] == [
        ["B", "asked", "train", "none recorded"],
        ["B", "refused", "none recorded", "not before | May"],
    ]


# Words of others, and words about privacy


def hostile(run: Path) -> Path:
    """Puts words that would be markup wherever a run has words of others."""
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"record": {"purpose": HOSTILE.replace("\u2028", "")}})))
    store = RunDirectory.open(run).party("A")
    held = load_predictions(store)
    save_predictions(store, Predicted(held.probabilities), held.ids, [HOSTILE, "- b", "1. c"])
    found = finding(HOSTILE, HOSTILE, "edges", HOSTILE, 0.6, evidence=HOSTILE, note=HOSTILE)
    report = audit(job=HOSTILE, more=(found,))
    report["skipped"][0].update(adversary=HOSTILE, why=HOSTILE)
    (run / "audit.json").write_text(json.dumps(report))
    drift = {"made_at": "2026-01-02T03:04:05+00:00", "compared": 3, "moved": [{"name": HOSTILE}]}
    (run / "parties/A/drift.json").write_text(json.dumps(drift))
    stated = {"work": "train", "software": {"A": {HOSTILE: HOSTILE}}}
    (run / "parties/A/software.jsonl").write_text(json.dumps(stated) + "\n")
    changed(run / "parties/A/disclosures.jsonl", lambda record: record.update(what=HOSTILE, why=HOSTILE))
    return Path(run.rename(run.with_name(HOSTILE.replace("/", ""))))


def test_no_word_of_others_forges_a_line_a_cell_or_markup(copied: Callable[[str], Path]) -> None:
    run = copied("vertical")
    (run / "audit.json").write_text(
        json.dumps(audit(job="vertical", more=(finding("A", "B", "edges", "attribute", 0.6),)))
    )
    plain, forged = documents(run), documents(hostile(run))
    for name in NAMES:
        text, before = forged[name], plain[name]
        assert "Forged" in text
        assert re.findall(r"(?m)^#.*", text) == re.findall(r"(?m)^#.*", before)
        assert len(re.findall(r"(?m)^- \*\*To be added:\*\* ", text)) == text.count("**To be added:**")
        assert not re.search(r"(?<!\\)[`<]|(?<!\\)\[|\u2028", text.rpartition("\n<!-- ")[0])
        assert text.count("<!--") == 1
        for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
            widths = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, "another number of cells"
    (classes,) = tables(section(forged["model-card"], "Figures by class"))
    assert [row[0] for row in classes][1:] == ["- b", "1. c"]
    assert classes[0][0].startswith("x # Forged | a | b | - **To be added:** y | z\\| <script>`1`</script>")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("# a", r"\# a"),
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("1.5 MB", "1.5 MB"),
        ("limits.max_epsilon", "limits.max_epsilon"),
        ("_a_ __b__", r"\_a\_ \_\_b\_\_"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("a\r\n\n| b", r"a \| b"),
        ("\x1b[2J\u202e", r"\\u001b\[2J\\u202e"),
        (["a", "b|"], r"a; b\|"),
        (None, "none recorded"),
        ([], "none recorded"),
    ],
)
def test_a_value_is_one_line_of_text(text: object, shown: str) -> None:
    assert markdown(text) == shown


CLAIM = re.compile(r"ε|differential|anonym|privac|protect|bounded|secure|complian", re.IGNORECASE)
NO_CLAIM = re.compile(
    r"^#|^\| [^|]* \| in the clear \||has no differential privacy|no ε bounds|There is no differential|"
    r"A simulation protects nobody|bounded by nothing|which protects nobody|not protected|\*\*To be added|ε one / all|"
    r"^\| (?:privacy|label_privacy) \| null \|$|^\| [^|]* \| (?:masked|share|random|public|blinded) \|"
)


def test_no_sentence_claims_privacy_where_the_job_has_none(made: dict[str, Path]) -> None:
    without, with_noise = documents(made["vertical"]), documents(made["sealed"])
    for name in NAMES:
        claims = [line for line in without[name].splitlines() if CLAIM.search(line) and not NO_CLAIM.search(line)]
        assert claims == []
    assert [line for line in with_noise["dpia"].splitlines() if CLAIM.search(line) and not NO_CLAIM.search(line)]
    told = section(without["dpia"], "Differential privacy").strip()
    assert re.fullmatch(r"This job has no differential privacy\.[^\n]* are infinite for every holder\.", told)
    assert told not in with_noise["dpia"]
    assert tables(section(with_noise["dpia"], "Differential privacy"))


# Files


def test_the_command_writes_what_is_asked_and_no_page(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("sealed")
    asked = {f"--{name}": tmp_path / f"{name}.md" for name in NAMES} | {"--evidence": tmp_path / "events.jsonl"}
    words = [word for pair in asked.items() for word in pair]
    result = veilgraph("report", run, *words)
    assert result.exit_code == 0, result.output
    assert not (run / "report.html").exists()
    for option, path in asked.items():
        assert re.search(rf"(?m)^{option[2:]} +{re.escape(str(path))}$", result.stdout)
        assert path.stat().st_mode & 0o777 == 0o600
    assert {name: (tmp_path / f"{name}.md").read_text() for name in NAMES} == documents(run)
    before = {path: path.read_bytes() for path in asked.values()}
    told = json.loads(veilgraph("report", run, *words, "--json").stdout)
    assert told["files"] == {option[2:]: str(path) for option, path in asked.items()}
    assert {path: path.read_bytes() for path in asked.values()} == before, "the same files give the same bytes"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_a_person_wrote_is_not_written_over(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run, dpia, card = copied("vertical"), tmp_path / "dpia.md", tmp_path / "card.md"
    assert veilgraph("report", run, "--dpia", dpia).exit_code == 0
    completed = dpia.read_text().replace(f"{TO_ADD}the decision", "- The decision: yes")
    dpia.write_text(completed)
    assert "dpia.md" in one_error(veilgraph("report", run, "--model-card", card, "--dpia", dpia))
    assert dpia.read_text() == completed
    assert not card.exists(), "all or none"
    disclosures = run / "parties/A/disclosures.jsonl"
    before = disclosures.read_bytes()
    with refused(RunError, code="not-ours"):
        write_files({disclosures: b""})
    assert "choose another file" in one_error(veilgraph("report", run, "--evidence", disclosures))
    assert disclosures.read_bytes() == before
    assert "choose another file" in one_error(veilgraph("report", run, "--dpia", tmp_path / "none" / "d.md"))
    (tmp_path / "folder.md").mkdir()
    assert "folder.md" in one_error(veilgraph("report", run, "--dpia", tmp_path / "folder.md"))


def test_options_that_do_not_go_together_are_refused(made: dict[str, Path], tmp_path: Path) -> None:
    run, file = made["vertical"], tmp_path / "d.md"
    for words, why in (
        (["--dpia", tmp_path / "job.yaml"], "must end in .md"),
        (["--evidence", tmp_path / "e.txt"], "must end in .jsonl or .cef"),
        (["--dpia", file, "--model-card", file], "is given twice"),
        (["--dpia", file, "--verify"], "--verify"),
        (["--dpia", file, "--out", tmp_path / "p.html"], "--out"),
        (["--dpia", file, "--by", "x"], "--by"),
        ([run, "--dpia", file], "of one run"),
        (["--format", "cef"], "--evidence"),
        (["--evidence", tmp_path / "e.cef", "--format", "xml"], "--format"),
    ):
        assert why in usage_error(veilgraph("report", run, *words))
    study(tmp_path / "comparison")
    assert "comparison" in one_error(veilgraph("report", tmp_path / "comparison", "--dpia", file))
    assert "none" in one_error(veilgraph("report", tmp_path / "none", "--dpia", file))
    assert not file.exists()


def test_a_damaged_record_is_one_error(copied: Callable[[str], Path], tmp_path: Path) -> None:
    run = copied("vertical")
    (run / "parties/A/drift.json").write_text('{"moved": []}')
    assert "a record is damaged" in one_error(veilgraph("report", run, "--technical", tmp_path / "t.md"))
    assert list(tmp_path.glob("*.md")) == []
