"""Commands that draft files, choose settings, and read several runs, with what they cannot take."""

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.bad.case import Arguments, Case, Material, copied

NODES = "id,age,city,label\n" + "".join(
    f"c{row},{20 + row},{'Ulm' if row % 3 else 'Bonn'},{row % 2}\n" for row in range(40)
)
EDGES = "source,target,when\n" + "".join(f"c{row},c{row + 1},2024-01-{1 + row % 28:02}\n" for row in range(39))
PARTY = "party: {name}\nnodes: {{file: nodes.csv, id: id, features: [{{columns: age}}]{more}}}\n"
LABEL = ", label: {column: label, classes: ['0', '1']}, split: {train: 0.5, val: 0.2, test: 0.3}"
JOB = "name: small\ndata: {dataset: synthetic}\nmodel: {dim: 4}\ntrain: {epochs: 2, patience: null}\n"
LONG = "x" * 300

PLACES = ("nonsense", "localhost", ":9000", "localhost:", "localhost:x", "localhost:-1", "localhost:65536", "",
          "192.0.2.1:9000", "[::1:9000", f"{LONG}:1", "a b:1", "0.0.0.0:0", "[::]:0", "localhost:1e3")  # fmt: skip
"""Where metrics cannot be served, or not without another word."""

Words = list[str]


def _files(folder: Path) -> None:
    """Tables, party files of a bank and a shop, and what is none of these."""
    (folder / "nodes.csv").write_text(NODES, encoding="utf-8")
    (folder / "edges.csv").write_text(EDGES, encoding="utf-8")
    (folder / "bank.yaml").write_text(PARTY.format(name="bank", more=LABEL), encoding="utf-8")
    (folder / "bank2.yaml").write_text(PARTY.format(name="bank", more=""), encoding="utf-8")
    (folder / "shop.yaml").write_text(PARTY.format(name="shop", more=""), encoding="utf-8")
    (folder / "also.yaml").write_text(PARTY.format(name="also", more=LABEL), encoding="utf-8")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    (folder / "broken.yaml").write_text("party: [", encoding="utf-8")
    (folder / "list.yaml").write_text("[1, 2]", encoding="utf-8")
    (folder / "null.yaml").write_bytes(b"")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 20)
    (folder / "empty.csv").write_bytes(b"")
    (folder / "header.csv").write_text("id,age\n", encoding="utf-8")
    (folder / "latin.csv").write_bytes(NODES.replace("Ulm", "K\xf6ln").encode("latin-1"))
    (folder / "folder.csv").mkdir()
    (folder / "mine.txt").write_text("mine", encoding="utf-8")
    (folder / "loop.csv").symlink_to("loop.csv")


def _given(words: Words, folder: Path) -> Arguments:
    _files(folder)
    return [str(folder / word.removeprefix("@")) if word.startswith("@") else word for word in words]


def _cases(name: str, begin: Words, every: dict[str, tuple[Words, str]]) -> Iterator[Case]:
    """``begin`` and further words, which spoil it: what these are → (the words, what the error names)."""
    for what, (words, says) in every.items():
        yield Case(f"{name}: {what}", partial(_given, [*begin, *words]), says=says)


def draft_cases() -> Iterator[Case]:
    """``init``, ``net init``, ``data init`` and ``schema``."""
    fine = ["@bank.yaml", "@shop.yaml"]
    out = ["--out", "@made.yaml"]
    yield from _cases("init", ["init"], {
        "a job": (["@bank.yaml", "@job.yaml", *out], "job.yaml"),
        "what is no YAML": (["@bank.yaml", "@broken.yaml", *out], "broken.yaml"),
        "a list": (["@bank.yaml", "@list.yaml", *out], "list.yaml"),
        "an empty file": (["@bank.yaml", "@null.yaml", *out], "null.yaml"),
        "a folder": (["@bank.yaml", "@folder.csv", *out], ""),
        "a table": (["@bank.yaml", "@nodes.csv", *out], ""),
        "the server's name": (["bank", "server", *out], "server"),
        "a name with a space": (["bank", "my shop", *out], "my shop"),
        "a name that climbs": (["bank", "../shop", *out], "../shop"),
        "a long name": (["bank", LONG, *out], ""),
        "an empty name": (["bank", "", *out], ""),
        "a name of nothing": ([*fine, *out, "--name", ""], "name"),
        "a name with a slash": ([*fine, *out, "--name", "a/b"], "a/b"),
        "a folder to write": ([*fine, "--out", "@folder.csv", "--replace"], "folder.csv"),
        "below a file": ([*fine, "--out", "@mine.txt/job.yaml"], "mine.txt"),
        "a long path": ([*fine, "--out", f"@{LONG}"], ""),
        "a link to itself": ([*fine, "--out", "@loop.csv/job.yaml"], "loop.csv"),
    })  # fmt: skip
    admin = ["--administrator", "ops@example.org"]
    yield from _cases("net init", ["net", "init"], {
        "a name with a space": (["bank", "my shop", *admin, *out], "my shop"),
        "a name that climbs": (["bank", "../shop", *admin, *out], "../shop"),
        "an empty name": (["bank", "", *admin, *out], ""),
        "an administrator of nothing": (["bank", "shop", "--administrator", "", *out], "administrator"),
        "an administrator twice": (["bank", "shop", *admin, *admin, *out], "ops@example.org"),
        "a host with a space": (["bank", "shop", *admin, *out, "--server", "fl example"], "fl example"),
        "a host of nothing": (["bank", "shop", *admin, *out, "--server", ""], "server"),
        "a host that is an option": (["bank", "shop", *admin, *out, "--server", "-x"], ""),
        "a long host": (["bank", "shop", *admin, *out, "--server", LONG], ""),
        "port 0": (["bank", "shop", *admin, *out, "--port", "0"], "port"),
        "a port too high": (["bank", "shop", *admin, *out, "--port", "65536"], "port"),
        "one port for both": (["bank", "shop", *admin, *out, "--port", "8003"], "8003"),
        "a name with a slash": (["bank", "shop", *admin, *out, "--name", "a/b"], "a/b"),
        "below a file": (["bank", "shop", *admin, "--out", "@mine.txt/project.yaml"], "mine.txt"),
    })  # fmt: skip
    tables = ["@nodes.csv", "@edges.csv", *out]
    yield from _cases("data init", ["data", "init"], {
        "nothing in it": (["@empty.csv", *out], "empty.csv"),
        "a header alone": (["@header.csv", *out], "header.csv"),
        "binary": (["@binary.csv", *out], "binary.csv"),
        "a folder": (["@folder.csv", *out], "folder.csv"),
        "not there": (["@none.csv", *out], "none.csv"),
        "a link to itself": (["@loop.csv", *out], "loop.csv"),
        "a job": (["@job.yaml", *out], "job.yaml"),
        "an id of nothing": ([*tables, "--id", ""], "id"),
        "the id as label": ([*tables, "--id", "id", "--label", "id"], "id"),
        "a split by no column": ([*tables, "--label", "label", "--split", "then:2024-01-05:2024-02-05"], "then"),
        "a split of nothing": ([*tables, "--label", "label", "--split", ""], "split"),
        "the 30th of February": ([*tables, "--as-of", "2024-02-30"], "2024-02-30"),
        "an encoding of none of the text": (["@latin.csv", *out, "--encoding", "utf-16"], ""),
        "a range of no column": ([*tables, "--range", "height:0:1"], "height"),
        "nothing to protect": ([*tables, "--protect", "people", "--epsilon", "1"], "protect"),
        "a limit on nothing": ([*tables, "--epsilon", "1"], "epsilon"),
        "no limit on what is protected": ([*tables, "--protect", "node"], "protect"),
        "a limit of nothing": ([*tables, "--protect", "node", "--epsilon", "0"], "epsilon"),
        "a name with a space": ([*tables, "--party", "my bank"], "my bank"),
        "a name of nothing": ([*tables, "--party", ""], "party"),
        "a folder to write": (["@nodes.csv", "--out", "@folder.csv", "--replace"], "folder.csv"),
        "below a file": (["@nodes.csv", "--out", "@mine.txt/party.yaml"], "mine.txt"),
    })  # fmt: skip
    yield from _cases("schema", ["schema"], {
        "of nothing that there is": (["jobs"], "jobs"),
        "of a path": (["@job.yaml"], "job.yaml"),
    })  # fmt: skip


def choice_cases() -> Iterator[Case]:
    """``tune`` and ``compare --alone``."""
    one = ["--trials", "1", "--out", "@made"]
    yield from _cases("tune", ["tune", "@job.yaml"], {
        "no such key": ([*one, "--vary", "model.width=4,8"], "model.width"),
        "a key beyond a value": ([*one, "--vary", "model.dim.x=4,8"], "model.dim"),
        "a value that is none": ([*one, "--vary", "model.dim=4,-8"], "model.dim"),
        "the seed": ([*one, "--vary", "seed=1,2"], "seed"),
        "--set of no key": ([*one, "--set", "model.width=4"], "model.width"),
        "out is a file": (["--trials", "1", "--out", "@mine.txt"], "mine.txt"),
        "out has other files": (["--trials", "1", "--out", "@."], ""),
        "out is below a file": (["--trials", "1", "--out", "@mine.txt/out"], "mine.txt"),
        "out is a link to itself": (["--trials", "1", "--out", "@loop.csv"], "loop.csv"),
    })  # fmt: skip
    apart = [*one, "--set", "data={holders: [bank, shop], label_holder: bank}"]
    yield Case("tune: across organisations", partial(_given, ["tune", "@job.yaml", *apart]), "made")
    for content in ("", "nonsense\n", '{"job": 1}\n[1]\n', "\x00", '{"job": 1}\n{"number": "x"}\n'):
        yield Case(f"tune: trials are {content[:12]!r}", partial(_trials, content), says="trials.jsonl")
    alone = ["--trials", "1", "--alone", "--out", "@made"]
    yield from _cases("tune --alone", ["tune", "@job.yaml"], {
        "of nodes of their own": ([*alone, "--set", "paradigm=averaging"], "paradigm"),
        "with a ledger": ([*alone, "--ledger", "bank=ledger"], "--ledger"),
        "a party file without it": ([*one, "--party", "@bank.yaml"], "--party"),
        "a party file that is none": ([*alone, "--party", "@broken.yaml"], "broken.yaml"),
        "another's party file": ([*alone, "--party", "@shop.yaml"], ""),
        "no such key": ([*alone, "--vary", "model.width=4,8"], "model.width"),
    })  # fmt: skip
    yield from _cases("compare --alone", ["compare", "@job.yaml", "--out", "@made"], {
        "is none": (["--alone", "@none"], "none"),
        "is no job": (["--alone", "@broken.yaml"], "broken.yaml"),
        "of other data": (["--alone", "@job.yaml", "--set", "data.feature_scaling=row"], "alone"),
        "of nodes of their own": (["--alone", "@job.yaml", "--set", "paradigm=averaging"], "paradigm"),
        "no share": (["--alone", "@job.yaml", "--recall-at", "0"], "alarms"),
    })  # fmt: skip


def _trials(content: str, folder: Path) -> Arguments:
    _files(folder)
    (folder / "made").mkdir(mode=0o700)
    (folder / "made" / "trials.jsonl").write_text(content, encoding="utf-8")
    return ["tune", folder / "job.yaml", "--trials", "1", "--out", folder / "made"]


def reading_cases(material: Material) -> Iterator[Case]:
    """``report`` of several runs and by a column, ``predict --json``, ``compare`` of runs."""

    def case(
        name: str,
        words: Words,
        says: str = "",
        spoil: Callable[[Path], object] = lambda folder: None,
        changes: str | None = None,
    ) -> Case:
        def prepare(folder: Path) -> Arguments:
            given = _given(words, folder)
            for run, whence in (("run", material.run), ("more", material.run), ("tables", material.aligned)):
                copied(whence, folder / run)
            spoil(folder)
            return given

        return Case(name, prepare, says=says, changes=changes)

    def remove(name: str) -> Callable[[Path], object]:
        return lambda folder: (folder / name).unlink()

    def replace(name: str, content: bytes) -> Callable[[Path], object]:
        return lambda folder: (folder / name).write_bytes(content)

    several, by = ["report", "@run", "@more"], ["report", "@tables", "--by"]
    yield case("report of several: one is none", [*several, "@folder.csv"], "folder.csv")
    yield case("report of several: one is not there", [*several, "@none"], "none")
    yield case("report of several: one is a file", [*several, "@job.yaml"], "job.yaml")
    yield case("report of several: seven", [*several, *["@tables"] * 5])
    yield case("report of several: --verify", [*several, "--verify"], "--verify")
    yield case("report of several: --by", [*several, "--by", "label"], "--by")
    yield case("report of several: --party", [*several, "--party", "@bank.yaml"], "--party")
    yield case("report of several: out is a folder", [*several, "--out", "@folder.csv"], "folder.csv")
    yield case("report of several: out is below a file", [*several, "--out", "@mine.txt/page.html"], "mine.txt")
    for name in ("summary.json", "metrics.jsonl", "job.yaml"):
        for content in (b"{\n", b"\xff\xfe\n", b"[[1]]\n"):
            spoiled = replace(f"more/{name}", content)
            yield case(f"report of several: {name} is {content!r}", several, name, spoiled)
    yield case("report of several: without job.yaml", several, "more", remove("more/job.yaml"))
    yield case("report --by no column", [*by, "height"], "height")
    yield case("report --by nothing", [*by, ""])
    yield case("report --by the id", [*by, "id"], "id")
    yield case("report --by the label", [*by, "label"], "label")
    yield case("report --by of a run of no tables", ["report", "@run", "--by", "age"], "age")
    yield case("report --by: tables are gone", [*by, "x", "--party", "@none.yaml"], "none.yaml")
    yield case("report --by: another's tables", [*by, "x", "--party", "@shop.yaml"], "shop")
    yield case("report --by: no party file", [*by, "x", "--party", "@broken.yaml"], "broken.yaml")
    yield case("report --by: --party is a folder", [*by, "x", "--party", "@folder.csv"], "folder.csv")
    yield case("report --party without --by", ["report", "@tables", "--party", "@bank.yaml"], "--party")
    yield case("report --by with --verify", [*by, "x", "--verify"], "--")
    predict = ["predict", "@run", "--json"]
    yield case("predict --json: no such node", [*predict, "--nodes", "100000"], "100000")
    yield case("predict --json: no number", [*predict, "--nodes", "one"], "one")
    yield case("predict --json: ids where there are none", [*predict, "--ids", "C1"], "ids", changes="run")
    yield case(
        "predict --json: no such id", ["predict", "@tables", "--json", "--ids", "nobody"], "nobody", changes="tables"
    )
    yield case("predict --json: both", [*predict, "--nodes", "1", "--ids", "C1"], "not both")
    yield case("predict --json: --ask of all", [*predict, "--nodes", "1", "--ask"], "--ask")
    yield case("predict --json: out is a folder", [*predict, "--out", "@folder.csv"], "folder.csv", changes="run")
    yield case(
        "predict --json: out is below a file", [*predict, "--out", "@mine.txt/out.csv"], "mine.txt", changes="run"
    )
    yield case("predict --json: not complete", predict, "run", remove("run/summary.json"))
    yield case("predict --json: of a folder", ["predict", "@folder.csv", "--json"], "folder.csv")
    yield case("compare of two runs", ["compare", "@run", "@more"], "veilgraph report")
    yield case("compare --alone of a run", ["compare", "@run", "--alone", "@job.yaml"], "--alone")


def serving_cases(material: Material) -> Iterator[Case]:
    """``--metrics`` and ``--log-format`` of what stays there until it is told to stop."""

    def prepare(words: Words, folder: Path) -> Arguments:
        given = _given(words, folder)
        shutil.copytree(material.aligned, folder / "run")
        return given

    keys = ["--certificate", "@mine.txt", "--key", "@mine.txt", "--token-file", "@token"]
    serve, join = ["net", "serve", "@run", *keys], ["net", "join", "@folder.csv"]
    for command, name in ((serve, "net serve"), (join, "net join")):
        for place in PLACES:
            words = [*command, "--metrics", place]
            yield Case(f"{name} --metrics {place[:20]}", partial(prepare, words), says="metrics")
        yield Case(f"{name} --metrics-open alone", partial(prepare, [*command, "--metrics-open"]), says="--metrics")
        for form in ("xml", "", "JSON "):
            words = [*command, "--log-format", form]
            yield Case(f"{name} --log-format {form!r}", partial(prepare, words), says="--log-format")
