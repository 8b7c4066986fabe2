"""The lock of a deployment covers all of it, pip refuses what it does not say, and the page of dependencies is true."""

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.pages import find_page

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "lock" / "deploy.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def of_extra(name):
    """What an extra adds, with that of the extras that it has."""
    for requirement in map(Requirement, EXTRAS[name]):
        if requirement.name == PROJECT["project"]["name"]:
            yield from (each for inner in sorted(requirement.extras) for each in of_extra(inner))
        else:
            yield requirement


def of_packages():
    """What the distributions add that ``make install-locked`` installs beside the package."""
    (line,) = re.findall(r"--no-build-isolation \.(.*)$", MAKEFILE, flags=re.MULTILINE)
    for folder in line.split():
        own = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        yield from (each for each in map(Requirement, own["dependencies"]) if not each.name.startswith("veilgraph"))


DIRECT = [*map(Requirement, PROJECT["project"]["dependencies"]), *of_extra("deploy"), *of_packages()]
BUILD = [Requirement(text) for text in PROJECT["build-system"]["requires"]]
LEFT_OUT = set(tomllib.loads((ROOT / "lock" / "uv.toml").read_text(encoding="utf-8"))["exclude-dependencies"])
TESTED = [
    {
        "python_version": version,
        "python_full_version": f"{version}.1",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    for version in ("3.11", "3.12", "3.13")
]
LEGAL_LINES = re.compile(
    r"#.*|"
    r"[a-z0-9-]+==[0-9][0-9a-z.]*( ; [a-z_<>=!'.0-9A-Z ()]+)? \\|"
    r"    --hash=sha256:[0-9a-f]{64}( \\)?|"
    r"    # via [a-z0-9, -]*(-r lock/(machines|tools|broker|pip|pkcs11|nobody|alignment)\.in)?"
    r"(, )?(veilgraph \(pyproject\.toml\))?[a-z0-9, -]*"
    r"(-c lock/deploy\.txt)?|"
)


def locked(text):
    """Requirement and number of hashes by name."""
    found = {}
    for block in re.split(r"\n(?=[a-z0-9])", text):
        first, *rest = block.split("\n")
        if first and not first.startswith("#"):
            requirement = Requirement(first.removesuffix("\\"))
            assert requirement.name not in found
            found[requirement.name] = (requirement, sum(line.startswith("    --hash=sha256:") for line in rest))
    return found


def version_of(requirement):
    (pin,) = requirement.specifier
    assert pin.operator == "=="
    return pin.version


def applies(requirement, environment):
    return requirement.marker is None or requirement.marker.evaluate(environment)


def unmet(requirement, lock):
    """Why the lock does not bring this requirement on a tested platform; empty: it does."""
    name = canonicalize_name(requirement.name)
    environments = [environment for environment in TESTED if applies(requirement, environment)]
    if name == "torch" or not environments:
        return []
    if name not in lock:
        return [f"{name} is not in the lock"]
    entry = lock[name][0]
    if not requirement.specifier.contains(version_of(entry), prereleases=True):
        return [f"{entry} is not {requirement.specifier}"]
    return [
        f"{entry} leaves out {environment['python_version']}"
        for environment in environments
        if not applies(entry, environment)
    ]


def holes(text):
    """What the lock lacks: for pyproject.toml, and for every package that is installed here at the locked version."""
    lock = locked(text)
    found = [hole for requirement in DIRECT + BUILD for hole in unmet(requirement, lock)]
    pins = {name: version_of(entry) for name, (entry, _) in lock.items()} | {"torch": torch_pin()}
    for name, version in pins.items():
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # of another platform
        if installed.version.partition("+")[0] == version:
            needed = [Requirement(one) for one in installed.requires or ()]
            found += [
                hole for one in needed if canonicalize_name(one.name) not in LEFT_OUT for hole in unmet(one, lock)
            ]
    return found


def torch_pin():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    (pin,) = [line for line in lines if line and not line.startswith("#")]
    requirement = Requirement(pin)  # refuses a hash
    assert requirement.name == "torch"
    return version_of(requirement)


@pytest.mark.parametrize(
    "name", ["deploy.txt", "tools.txt", "broker.txt", "pip.txt", "pkcs11.txt", "nobody.txt", "alignment.txt"]
)
def test_a_lock_has_pins_and_hashes_and_nothing_else(name):
    text = (ROOT / "lock" / name).read_text(encoding="utf-8")
    assert [line for line in text.split("\n") if not LEGAL_LINES.fullmatch(line)] == []
    source = "machines" if name == "deploy.txt" else name.removesuffix(".txt")
    assert "/" not in text.replace(f"-r lock/{source}.in", "").replace("-c lock/deploy.txt", "")
    assert [entry for entry, (_, hashes) in locked(text).items() if hashes == 0] == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://index.example/simple",
        "-e file:///home/somebody/veilgraph",
        "flask @ https://files.example/flask.whl",
        "flask>=3 \\",
        "    --hash=md5:0123456789abcdef0123456789abcdef",
    ],
)
def test_other_lines_are_not_legal(line):
    assert LEGAL_LINES.fullmatch(line) is None


def test_the_lock_covers_all_that_a_deployment_needs():
    assert holes(LOCK.read_text(encoding="utf-8")) == []  # mended by: make lock


@pytest.mark.parametrize(
    ("old", "new", "hole"),
    [
        (r"^h11==.*\n(    .*\n)*", "", "h11 is not in the lock"),  # of an extra
        (r"^markupsafe==.*\n(    .*\n)*", "", "markupsafe is not in the lock"),  # jinja2's own
        (r"^pymetis==.*\n(    .*\n)*", "", "pymetis is not in the lock"),  # of another distribution
        (r"^cryptography==\S+", "cryptography==46.0.0", "cryptography==46.0.0 is not >=48"),
        (r"^(rich==\S+)", r"\1 ; python_version < '3.13'", 'rich==.*; python_version < "3.13" leaves out 3.13'),
        (r"^(numpy==\S+)", r"\1 ; sys_platform == 'win32'", "numpy==.* leaves out 3.11"),
    ],
)
def test_a_hole_is_found(old, new, hole):
    text, changed = re.subn(old, new, LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert changed == 1
    assert any(re.fullmatch(hole, one) for one in holes(text))


def test_torch_is_pinned_by_version_alone():
    lock = locked(LOCK.read_text(encoding="utf-8"))
    assert "torch" not in lock
    assert [name for name in lock if name.startswith(("nvidia-", "cuda-", "triton"))] == []
    (needed,) = [requirement for requirement in DIRECT if requirement.name == "torch"]
    assert needed.specifier.contains(torch_pin())


# What pip makes of a lock, with the options of `make install-locked`.


def locked_pip():
    (line,) = re.findall(r"^LOCKED_PIP := (.*)$", MAKEFILE, flags=re.MULTILINE)
    return shlex.split(line)


def wheel(folder):
    path = folder / "parcel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("parcel.py", "")
        archive.writestr("parcel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n")
        archive.writestr("parcel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("parcel-1.0.dist-info/RECORD", "")
    return sha256(path.read_bytes()).hexdigest()


def installs(tmp_path, requirements, options):
    (tmp_path / "lock.txt").write_text(requirements, encoding="utf-8")
    target = tmp_path / "site"
    local = ["--no-index", "--find-links", str(tmp_path), "--target", str(target), "-r", str(tmp_path / "lock.txt")]
    done = subprocess.run([sys.executable, *options, *local], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (target / "parcel.py").exists()
    return done


def test_the_file_of_the_hash_is_installed(tmp_path):
    digest = wheel(tmp_path)
    done = installs(tmp_path, f"parcel==1.0 --hash=sha256:{digest}\n", locked_pip())
    assert done.returncode == 0, done.stderr


def test_another_file_of_the_same_version_is_refused(tmp_path):
    wheel(tmp_path)
    done = installs(tmp_path, f"parcel==1.0 --hash=sha256:{'0' * 64}\n", locked_pip())
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_an_entry_without_hash_is_refused(tmp_path):
    wheel(tmp_path)
    assert installs(tmp_path, "parcel==1.0\n", locked_pip()).returncode != 0
    unprotected = [option for option in locked_pip() if option != "--require-hashes"]
    assert installs(tmp_path, "parcel==1.0\n", unprotected).returncode == 0


def test_nothing_is_built_from_source(tmp_path):
    source = tmp_path / "parcel-1.0.tar.gz"
    source.write_bytes(b"never opened")
    done = installs(tmp_path, f"parcel==1.0 --hash=sha256:{sha256(source.read_bytes()).hexdigest()}\n", locked_pip())
    assert done.returncode != 0
    assert "No matching distribution found" in done.stderr


# The SBOM's hashes.


def lock_module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "lock" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_sbom_gets_the_hash_of_each_installed_file(tmp_path, capsys):
    bom = {
        "metadata": {"component": {"name": "veilgraph"}},
        "components": [
            {"name": "mlflow_skinny", "version": "2.0.6"},
            {"name": "torch", "version": "2.13.0+cpu"},
            {
                "name": "pip",
                "version": "23.2.1",
                "externalReferences": [{"url": "file:///home/a"}, {"url": "https://b"}],
            },
        ],
    }

    def installed(name, version, digest):
        archive = {"hashes": {"sha256": digest}}
        return {"download_info": {"archive_info": archive}, "metadata": {"name": name, "version": version}}

    folder = {"download_info": {"dir_info": {}}, "metadata": {"name": "pip", "version": "23.2.1"}}
    reports = {
        "a.json": [installed("mlflow-skinny", "2.0.6", "aa"), folder],
        "b.json": [installed("torch", "2.13.0+cpu", "bb"), installed("pip", "1.0", "cc")],
    }
    for name, items in reports.items():
        (tmp_path / name).write_text(json.dumps({"install": items}), encoding="utf-8")
    path = tmp_path / "bom.json"
    path.write_text(json.dumps(bom), encoding="utf-8")
    lock_module("hashes").main("0.1.0", path, [tmp_path / name for name in reports])
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["metadata"]["component"]["version"] == "0.1.0"
    assert [component.get("hashes") for component in result["components"]] == [
        [{"alg": "SHA-256", "content": "aa"}],
        [{"alg": "SHA-256", "content": "bb"}],
        None,
    ]
    assert result["components"][2]["externalReferences"] == [{"url": "https://b"}]
    assert "3 components; without a hash: pip" in capsys.readouterr().out


# What make wheelhouse collects.


def test_a_wheelhouse_names_what_is_installed_each_by_its_hash(tmp_path):
    module = lock_module("wheelhouse")
    digest = wheel(tmp_path)
    hashes = module.built_hashes(tmp_path) | {("torch", "2.13.0+cpu"): "bb", ("not-installed", "1"): "cc"}
    lines = module.requirements({("torch", "2.13.0+cpu"), ("parcel", "1.0")}, hashes)
    assert lines == [f"parcel==1.0 --hash=sha256:{digest}", "torch==2.13.0+cpu --hash=sha256:bb"]
    with pytest.raises(SystemExit, match=r"Without a hash: parcel\."):
        module.requirements({("parcel", "2.0")}, hashes)


FAKE_PYTHON = """#!/bin/sh
echo "$*" >> calls
case "$*" in
  *"pip download"*) test ! -e offline && echo torch > wheelhouse.new/torch-1-py3-none-any.whl;;
  *"-m build"*) for last; do :; done; echo "$last" > "wheelhouse.new/$(basename "$last")-1-py3-none-any.whl";;
  *lock.wheelhouse*) echo "parcel==1.0 --hash=sha256:00";;
esac
"""
"""Stands for the Pythons of both environments: builds and downloads a file each, unless there is a file `offline`."""


@pytest.fixture
def checkout(tmp_path):
    """A repository with the Makefile, whose other targets do nothing (`MAKE=true`)."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "lock", tmp_path / "lock", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "veilgraph.cdx.json").write_text("{}", encoding="utf-8")
    for venv in (".venv-tools", ".venv-locked"):
        python = tmp_path / venv / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(FAKE_PYTHON, encoding="utf-8")
        python.chmod(0o755)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def run(folder, *words):
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_a_wheelhouse_has_all_that_an_installation_takes_under_its_sums(checkout):
    done = run(checkout, "make", "wheelhouse", "MAKE=true")
    assert done.returncode == 0, done.stderr
    house = checkout / "wheelhouse"
    files = {path.relative_to(house).as_posix() for path in house.rglob("*") if path.is_file()}
    packages = {path.name for path in (ROOT / "packages").iterdir() if (path / "pyproject.toml").exists()}
    assert files == {
        *(f"{name}-1-py3-none-any.whl" for name in {"torch", *packages}),
        *(f"lock/{path.name}" for path in (ROOT / "lock").glob("*.txt")),
        *("lock/constraints.txt", "requirements.txt", "veilgraph.cdx.json", "SHA256SUMS"),
    }
    commit = run(checkout, "git", "rev-parse", "HEAD").stdout
    assert (house / "requirements.txt").read_text(encoding="utf-8").startswith(f"# veilgraph at commit {commit}")
    assert f"of commit {commit.strip()}: {len(files) - 1} files, " in done.stdout
    (download,) = [line for line in (checkout / "calls").read_text().splitlines() if "pip download" in line]
    assert all(f"-r lock/{name}.txt" in download for name in ("pip", "broker", "pkcs11"))
    for option in ("--only-binary :all:", "--no-deps", "--require-hashes"):
        assert option in download
    check = ("sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS")
    assert run(house, *check).returncode == 0
    (house / "torch-1-py3-none-any.whl").write_text("tampered", encoding="utf-8")
    assert "torch-1-py3-none-any.whl: FAILED" in run(house, *check).stdout
    page = find_page("supply-chain.md").read_text(encoding="utf-8")
    assert " ".join(check) in page


def test_a_wheelhouse_that_is_not_whole_does_not_get_the_name(checkout):
    assert run(checkout, "make", "wheelhouse", "MAKE=true").returncode == 0
    whole = (checkout / "wheelhouse" / "SHA256SUMS").read_bytes()
    (checkout / "offline").touch()
    assert run(checkout, "make", "wheelhouse", "MAKE=true").returncode != 0
    assert (checkout / "wheelhouse" / "SHA256SUMS").read_bytes() == whole
    (checkout / "lock" / "deploy.txt").write_text("", encoding="utf-8")
    assert "built from a commit" in run(checkout, "make", "wheelhouse", "MAKE=true").stderr


# The page.

MODULES = {
    "mlflow-skinny": "mlflow",
    "pynacl": "nacl",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}


def imports(path):
    """Top-level names of what a module imports, at its head, in functions, or by `import_module`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names = [str(one.value) for one in node.args if isinstance(one, ast.Constant)]
        yield from (name.partition(".")[0] for name in names)


def importers():
    """Which parts of veilgraph import which modules: {"yaml": {"cli", "core", ...}, ...}."""
    package = ROOT / "src" / "veilgraph"
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        part = path.relative_to(package).parts[0].removesuffix(".py")
        for name in imports(path):
            found.setdefault(name, set()).add(part)
    return found


def rows():
    """{dependency: its parts of veilgraph} of the table in docs/reference/supply-chain.md."""
    page = find_page("supply-chain.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([a-z_0-9-]+)` \| ([^|]*) \|", page, flags=re.MULTILINE)
    assert len(dict(table)) == len(table)
    return {canonicalize_name(name): set(re.findall(r"`(\w+)`", parts)) for name, parts in table}


def test_every_direct_dependency_has_a_row_that_says_where_it_is_imported():
    extra = [requirement for name in EXTRAS if name != "dev" for requirement in of_extra(name)]
    names = {canonicalize_name(requirement.name) for requirement in DIRECT + extra}
    found = importers()
    module = {name: MODULES.get(name, name.replace("-", "_")) for name in names}
    assert rows() == {name: found.get(module[name], set()) for name in sorted(names)}
