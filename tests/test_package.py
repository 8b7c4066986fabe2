"""What `make dist` builds: its metadata are true, its archives whole, and the wheel works where nothing else is."""

import io
import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import yaml

from tests import nightly
from veilgraph import __version__
from veilgraph.protocol.paradigm import PARADIGMS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].keys() - {"dev"}
PAGE = (ROOT / PROJECT["readme"]).read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHONS = ("3.11", "3.12", "3.13")


# Metadata.


def test_the_licence_is_the_standard_text():
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_bytes()
    assert sha256(text).hexdigest() == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def test_pythons_are_those_that_the_page_and_the_classifiers_name():
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert tuple(named) == PYTHONS
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in PAGE


def test_the_citation_says_what_the_package_says():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert (cited["title"], cited["license"]) == (PROJECT["name"], PROJECT["license"])
    assert (cited["abstract"], cited["keywords"]) == (PROJECT["description"], PROJECT["keywords"])
    assert cited["authors"] == PROJECT["maintainers"]


# The page that an index shows.


def rows(text, head):
    """Rows of the table whose head this is; their links without where they lead."""
    table = text.split(f"{head}\n")[1].split("\n\n")[0].splitlines()[1:]
    return [re.sub(r": \[[^]]*\]\([^)]*\)", "", row) for row in table]


def test_the_page_has_no_link_that_an_index_would_break():
    assert re.findall(r"\]\((?!https://)|\]:|<(?:a|img)\b|<!--", PAGE) == []


def test_the_page_says_what_the_readme_says():
    head = "| who has what | take | who sees what |"
    assert rows(PAGE, head) == rows(README, head)
    assert {row.split("`")[1] for row in rows(PAGE, head)} == set(PARADIGMS)
    (code,) = re.findall(r"^```python\n.*?^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert code in README  # whose blocks run
    assert README.splitlines()[2] == f"{PROJECT['description']}."
    assert f"**{PROJECT['description']}.**" in PAGE


def test_the_page_has_every_extra():
    assert set(re.findall(r"^\| `veilgraph\[(\w+)\]`", PAGE, flags=re.MULTILINE)) == EXTRAS


def test_a_package_that_an_error_names_is_of_an_extra():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r"pip install ([a-z][a-z0-9-]+)", sources))
    extras = {
        name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in ("deploy", "dev")
    }
    assert named == {re.split(r"[^a-z0-9-]", wanted[0])[0] for wanted in extras.values()}
    assert set(re.findall(r"pip install '\.\[(\w+)\]'", sources)) == {"deploy"}


# What the archives have.


def contents_module():
    spec = spec_from_file_location("contents", ROOT / "lock" / "contents.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTENTS = contents_module()
FILES = [
    *("LICENSE", "README.md", "pyproject.toml", "docs/explanation/sealed.md", "docs/picture.py", "jobs/digits.yaml"),
    *("src/veilgraph/__init__.py", "src/veilgraph/py.typed", "src/veilgraph/samples/jobs/digits.yaml"),
    *("tests/test_a.py", "research/b.py", "benchmarks/c.py", "lock/hashes.py"),
]
WHEEL = "veilgraph-1.0-py3-none-any.whl"
SOURCE = "veilgraph-1.0.tar.gz"


def wheel_with(folder, names):
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return CONTENTS.wheel_faults(folder / WHEEL, FILES)


def source_with(folder, names, text="", links=()):
    with tarfile.open(folder / SOURCE, "w:gz") as archive:
        for name in names:
            content = text.encode() if name.endswith("README.md") else b""
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if name in links:
                entry.type, entry.linkname, entry.size = tarfile.SYMTYPE, "elsewhere", 0
            archive.addfile(entry, io.BytesIO(content))
    return CONTENTS.source_faults(folder / SOURCE, FILES)


def test_a_wheel_has_the_package_and_nothing_else(tmp_path):
    whole = CONTENTS.of_wheel(FILES, "veilgraph-1.0")
    assert wheel_with(tmp_path, whole) == []
    assert wheel_with(tmp_path, whole - {"veilgraph/py.typed"}) == [f"{WHEEL} lacks veilgraph/py.typed"]
    for name in ("tests/test_a.py", "veilgraph/left_over.py", "runs/first/weights"):
        assert wheel_with(tmp_path, whole | {name}) == [f"{WHEEL} has {name}, which it should not"]


def test_a_source_distribution_has_what_installing_and_reading_take(tmp_path):
    whole = CONTENTS.of_source(FILES, "veilgraph-1.0")
    assert {f"veilgraph-1.0/{name}" for name in ("LICENSE", "docs/explanation/sealed.md", "jobs/digits.yaml")} < whole
    assert not any(name.split("/")[1] in ("tests", "research", "benchmarks") for name in whole)
    assert source_with(tmp_path, whole) == []
    note = "veilgraph-1.0/src/veilgraph.egg-info/SOURCES.txt"
    assert source_with(tmp_path, whole | {note}) == []
    name = "veilgraph-1.0/tests/test_a.py"
    assert source_with(tmp_path, whole | {name}) == [f"{SOURCE} has {name}, which it should not"]
    name = "veilgraph-1.0/src/veilgraph/samples/jobs/digits.yaml"
    assert source_with(tmp_path, whole - {name}) == [f"{SOURCE} lacks {name}"]
    assert source_with(tmp_path, [*whole, name]) == [f"{SOURCE} has {name} twice"]


def test_a_link_among_the_files_or_to_none_of_them_is_found(tmp_path):
    whole = CONTENTS.of_source(FILES, "veilgraph-1.0")
    name = "veilgraph-1.0/jobs/digits.yaml"
    assert source_with(tmp_path, whole, links=[name]) == [f"{SOURCE} has {name}, which is no plain file"]
    good = "[a](docs/explanation/sealed.md#b), [c](jobs), [d](https://example.org/e), [f](#g)"
    assert source_with(tmp_path, whole, good) == []
    (fault,) = source_with(tmp_path, whole, f"{good}, [h](tests/test_a.py)")
    assert "README.md links to tests/test_a.py" in fault


def test_what_git_tracks_is_what_is_looked_for(tmp_path):
    def git(*words):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "inside").mkdir()
    for name in ("inside/a.yaml", "untracked"):
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "link").symlink_to("inside")
    git("init", "-q")
    git("add", "inside", "link")
    assert sorted(CONTENTS.tracked(tmp_path)) == ["inside/a.yaml", "link/a.yaml"]


def test_not_one_of_each_is_refused(tmp_path, capsys):
    assert CONTENTS.main(tmp_path) == 1
    assert "0 wheels and 0 source distributions" in capsys.readouterr().out


def test_a_fault_fails_and_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(CONTENTS, "tracked", lambda root: FILES)
    stem = "veilgraph-1.0"
    wheel_with(tmp_path, CONTENTS.of_wheel(FILES, stem))
    source_with(tmp_path, CONTENTS.of_source(FILES, stem))
    assert CONTENTS.main(tmp_path) == 0
    assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == ["0.0 MB", "0.0 MB"]
    for spoil in (wheel_with, source_with):
        spoil(tmp_path, ["notes.txt"])
        assert CONTENTS.main(tmp_path) == 1
        assert "has notes.txt, which it should not" in capsys.readouterr().out


def test_make_dist_builds_with_the_locked_tools_alone_and_checks_strictly():
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndist:")[1].split("\n\n")[0]
    wanted = ("-m build --quiet --no-isolation", "-m twine --no-color check --strict", "lock/contents.py $(DIST)")
    assert [each for each in wanted if f"\n\t@$(TOOLS_VENV)/bin/python {each}" not in recipe] == []


# Built, and installed beside nothing.


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder into which make dist has put both."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(["make", "dist", f"DIST={folder}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def python_of(version):
    """A Python of this version on PATH that works; a shim of one that is not chosen does not."""
    for folder in os.get_exec_path():
        found = shutil.which(f"python{version}", path=folder)
        if found and not subprocess.run([found, "-c", "import venv"], capture_output=True, check=False).returncode:
            return found
    return None


@nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_works_where_nothing_else_is(built, version, tmp_path):
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no python{version} on PATH")
    (wheel,) = built.glob("*.whl")
    empty = tmp_path / "empty"
    empty.mkdir()
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True, env=alone)
    bin_ = tmp_path / "venv" / "bin"
    clean = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def called(*words, rc=0):
        done = subprocess.run(
            [bin_ / words[0], *words[1:]], cwd=empty, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == rc, done.stdout + done.stderr
        return done.stdout + done.stderr

    install = [bin_ / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel]
    subprocess.run(install, check=True, env=alone)  # with this machine's settings of pip
    assert called("python", "-W", "error", "-c", "import veilgraph; print(veilgraph.__file__)").startswith(
        str(bin_.parent)
    )
    assert called("veilgraph", "--version").split() == ["veilgraph", __version__]
    assert "test accuracy" in called("veilgraph", "demo", "--epochs", "2")
    called("veilgraph", "data", "export", "digits", "--out", "tables", "--holders", "2")
    assert "test accuracy" in called("veilgraph", "train", "tables/job.yaml", "--out", "own", "--set", "train.epochs=2")
    assert "is not a start-up kit" in called("veilgraph", "net", "status", "--kit", "kit", rc=1)
