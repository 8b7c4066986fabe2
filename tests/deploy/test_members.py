"""Holders and administrators come and go, and nobody else gets another kit."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import one_error, veilgraph
from tests.deploy.consortium import JOB
from tests.errors import refused
from tests.link.brokers import needs_broker
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.deploy.authority import Authority
from veilgraph.deploy.certificates import install_roles
from veilgraph.deploy.demo import free_port, join_site, local_network
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.project import ProjectSettings, extend
from veilgraph.deploy.roles import ROLES, Roles, write_roles
from veilgraph.deploy.submit import submit
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_dataset

BANKS = ["A", "B", "C"]
FIRST, SECOND = "ops@example.org", "more@example.org"


def job(*holders: str) -> JobSettings:
    return parse_job({"name": "_".join(holders), **JOB, "data": {**JOB["data"], "holders": list(holders)}})


@needs_broker
def test_a_holder_that_joins_takes_part_and_one_that_leaves_does_not(tmp_path: Path) -> None:
    file, out = tmp_path / "project.yaml", tmp_path / "consortium"
    newest = out / "authority" / ROLES

    def write(holders: list[str], administrators: list[str]) -> None:
        server = {"host": "localhost", "port": port}
        content = {"name": "banks", "server": server, "holders": holders, "administrators": administrators}
        file.write_text(yaml.safe_dump(content), encoding="utf-8")

    def run(settings: JobSettings, administrator: str = FIRST) -> RunDirectory:
        kit = Kit.open(out / "kits" / administrator)
        submit(kit, settings, "train", resume=False, wait=True, report=lambda _: None)
        return RunDirectory.open(network.runs("A") / settings.name)

    def install(*names: str) -> None:
        for name in names:
            assert veilgraph("cert", "install", out / "kits" / name, newest).exit_code == 0

    port = free_port()
    write(BANKS[:2], [FIRST])
    assert veilgraph("net", "provision", file, "--out", out).exit_code == 0
    tables = export_dataset(DataSettings(dataset="synthetic", holders=3), tmp_path / "tables", overlap=0.8, seed=1)
    kits = {path.name: path for path in (out / "kits").iterdir()}
    with local_network(kits, {name: tables[name] for name in BANKS[:2]}, lambda _: None) as network:
        before = {path: path.read_bytes() for kit in kits.values() for path in (kit / "startup").iterdir()}
        write(BANKS, [FIRST, SECOND])
        added = veilgraph("net", "provision", file, "--out", out, "--add")
        assert "cert install KIT roles.json" in added.output
        assert {path.name for path in (out / "kits").iterdir()} == {*kits, "C", SECOND}
        assert before == {path: path.read_bytes() for path in before}
        with refused(ConfigError, party="C"):
            run(job(*BANKS))
        install("server", "A", "B", FIRST)
        network.sites["C"] = join_site(out / "kits" / "C", tables["C"], 1)
        write(["A", "C"], [FIRST, SECOND])
        assert veilgraph("net", "provision", file, "--out", out, "--add").exit_code == 0
        install(FIRST)
        with refused(ConfigError, party="B"):
            run(job("A", "B"))
        assert run(job("A", "C"), SECOND).settings.data.names == ("A", "C")
        assert (out / "kits" / "C" / "runs" / "A_C" / "parties" / "C").is_dir()


@pytest.fixture
def consortium(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "consortium"))


def project(**changes: object) -> ProjectSettings:
    content = {"name": "fraud", "server": {"host": "localhost"}, "holders": ["bank", "shop", "telecom"], **changes}
    return ProjectSettings.model_validate({"administrators": [FIRST], **content})


def added(consortium: Path, **changes: object) -> list[str]:
    return list(extend(project(**changes), Authority(consortium / "authority"), consortium))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"server": {"host": "example.org"}},
        {"dealer": "notary"},
        {"brokers": [{"host": "example.org"}]},
        {"holders": ["bank", "shop"]},
    ],
)
def test_nothing_but_members_changes(consortium: Path, change: dict[str, object]) -> None:
    before = sorted(consortium.rglob("*"))
    with refused(ConfigError, key="project"):
        added(consortium, **change)
    assert sorted(consortium.rglob("*")) == before


def test_who_is_new_gets_a_kit_once(consortium: Path) -> None:
    assert added(consortium, administrators=[FIRST, SECOND]) == ["telecom", SECOND]
    kit = Kit.open(consortium / "kits" / "telecom")
    assert (kit.party, kit.roles.holders, kit.roles.number) == ("telecom", ("bank", "shop", "telecom"), 2)
    assert kit.identity().roots == Kit.open(consortium / "kits" / "bank").identity().roots
    with refused(ConfigError, key="project"):
        added(consortium, administrators=[FIRST, SECOND])


def test_a_killed_addition_is_made_again_once_what_it_left_is_removed(consortium: Path) -> None:
    (consortium / "kits" / "telecom" / "startup").mkdir(parents=True)
    with pytest.raises(RunError, match="not an empty directory"):
        added(consortium)
    shutil.rmtree(consortium / "kits" / "telecom")
    assert added(consortium) == ["telecom"]


def signed(consortium: Path, folder: Path, **changes: object) -> Path:
    """Roles that the project's root has signed."""
    authority = Authority(consortium / "authority")
    roles = Kit.open(consortium / "kits" / "bank").roles.model_copy(update={"number": 2, **changes})
    folder.mkdir(exist_ok=True)
    write_roles(folder, roles, authority.key(), authority.issued())
    return folder / ROLES


def forged(consortium: Path, folder: Path) -> Path:
    """Somebody who reads a kit lets in one more."""
    path = signed(consortium, folder)
    path.write_text(path.read_text(encoding="utf-8").replace("shop", "shoq"), encoding="utf-8")
    return path


def of_another_root(consortium: Path, folder: Path) -> Path:
    folder.mkdir()
    roles = Roles(project="fraud", server="localhost", holders=("bank", "shop", "thief"), number=9)
    write_roles(folder, roles, Authority(consortium / "authority").key("brokersCA"))
    return folder / ROLES


def of_another_dealer(consortium: Path, folder: Path) -> Path:
    return signed(consortium, folder, dealer="thief")


def of_a_stranger(consortium: Path, folder: Path) -> Path:
    """The broker is to let in whom the project's root did not certify."""
    path, authority = signed(consortium, folder), Authority(consortium / "authority")
    write_roles(folder, Kit.open(consortium / "kits" / "bank").roles, authority.key(), authority.issued("brokersCA"))
    return path


@pytest.mark.parametrize(
    ("made", "code"),
    [(forged, "roles"), (of_another_root, "roles"), (of_another_dealer, "roles"), (of_a_stranger, "other-project")],
)
def test_what_the_root_did_not_sign_for_this_project_is_not_installed(
    consortium: Path, tmp_path: Path, made: Callable[[Path, Path], Path], code: str
) -> None:
    kit = Kit.open(consortium / "kits" / "server")
    before, admitted = kit.roles, sorted((kit.path / "broker" / "participants").iterdir())
    with refused(DataError, code=code):
        install_roles(kit, made(consortium, tmp_path / "made"))
    assert kit.roles == before
    assert sorted((kit.path / "broker" / "participants").iterdir()) == admitted


def test_the_broker_lets_in_no_holder_that_left_whose_certificate_is_good(consortium: Path, tmp_path: Path) -> None:
    """As an account that is none of a site's it could else send requests, as an administrator does."""
    kit, now = Kit.open(consortium / "kits" / "server"), datetime.now(UTC)
    assert '"participant-shop"' in kit.broker_configuration(now)
    install_roles(kit, signed(consortium, tmp_path / "newer", holders=("bank",)))
    made = kit.broker_configuration(now)
    assert ('"participant-bank"' in made, '"participant-ops@example~org"' in made) == (True, True)
    assert "shop" not in made


def test_older_roles_do_not_come_back(consortium: Path, tmp_path: Path) -> None:
    """Else whoever kept the file could have a site work with those who have left."""
    kit = Kit.open(consortium / "kits" / "bank")
    older = signed(consortium, tmp_path / "older")
    newer = signed(consortium, tmp_path / "newer", number=3, holders=("bank",))
    assert install_roles(kit, older).number == 2
    assert install_roles(kit, newer).holders == ("bank",)
    assert install_roles(kit, newer) == kit.roles
    for file in (older, signed(consortium, tmp_path / "fork", number=3, holders=("bank", "shop"))):
        assert "give the newest one" in one_error(veilgraph("cert", "install", kit.path, file))
    assert kit.roles.holders == ("bank",)
