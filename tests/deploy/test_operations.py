"""The files in deploy/, the runbook and the page of operations name what there is: commands, options, metrics."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from docs.pages import find_page
from tests.deploy.small_project import bank_and_shop
from veilgraph.cli import app
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.kit import SiteFile
from veilgraph.deploy.metrics.exposed import METRICS, READY, InferenceState, Requests, WatchedService, pages
from veilgraph.deploy.metrics.site import WatchedSite
from veilgraph.deploy.progress import STATES, SiteJob, SiteJobs
from veilgraph.deploy.revocation import install_list
from veilgraph.deploy.site_process import SiteWatch

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy"
UNITS = sorted((FILES / "systemd").glob("*.service"))
COMPOSE = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((FILES / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
RUNBOOK = find_page("runbook.md").read_text(encoding="utf-8")
CONTAINER = (FILES / "Containerfile").read_text(encoding="utf-8")


def directives(unit: Path) -> list[tuple[str, str]]:
    """Key and value of every line of a unit, in order."""
    lines = unit.read_text(encoding="utf-8").splitlines()
    return [(key, value) for key, _, value in (line.partition("=") for line in lines if re.match(r"[A-Z]\w+=", line))]


def calls() -> Iterator[tuple[str, list[str]]]:
    """Where a call of veilgraph stands, and its words."""
    for unit in UNITS:
        text = unit.read_text(encoding="utf-8")
        for line in re.findall(r"^#?ExecStart=(.*)$", text, re.MULTILINE):
            yield unit.name, shlex.split(line)[1:]
    for name, service in COMPOSE["services"].items():
        yield f"compose.yaml: {name}", [str(word) for word in service["command"]]
    (command,) = re.findall(r"^CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    yield "Containerfile", json.loads(command)
    for path in [*FILES.rglob("*.*"), FILES / "Containerfile"]:
        for line in re.findall(r"veilgraph ((?:net|data|cert) [a-z].*)", path.read_text(encoding="utf-8")):
            if "ExecStart" not in line:
                yield path.name, line.split("  ")[0].split()
    for line in re.findall(r"veilgraph ([a-z][^`\n]*)", RUNBOOK):
        if line.split()[0] in {*inner(None), "net", "cert", "data"}:
            yield "runbook.md", line.split("  ")[0].split()


@cache
def program() -> Any:
    return typer.main.get_command(app)


def inner(group: Any) -> dict[str, Any]:
    """The commands of a group; of the program itself for None."""
    return getattr(program() if group is None else group, "commands", {})


def test_every_command_and_option_is_there() -> None:
    found = list(calls())
    assert {"Containerfile", "compose.yaml: bank", "runbook.md", *(unit.name for unit in UNITS)} <= {
        at for at, _ in found
    }
    assert len(found) > 30
    for at, words in found:
        command: Any = None
        rest = list(words)
        while inner(command):
            name = rest.pop(0).strip(",;:.)")
            assert name in inner(command), f"{at}: {words}"
            command = inner(command)[name]
        options = {option for each in command.params for option in each.opts}
        used = {word.partition("=")[0].strip("`,;:.") for word in rest if word.startswith("--")}
        assert used <= options, f"{at}: {command.name} has no {used - options}"


def test_every_option_that_needs_a_value_of_a_unit_has_one() -> None:
    """The calls are as a shell would give them, so far as nothing of theirs need be there."""
    for at, words in calls():
        if at.endswith(".service") or at.startswith(("compose.yaml: ", "Container")):
            is_watch = words[0] == "watch"
            command: Any = inner(None)["watch"] if is_watch else inner(inner(None)["net"])[words[1]]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(command, "invoke", lambda context: context.params)
                given = command.main(words[1 if is_watch else 2 :], standalone_mode=False)
            if is_watch:
                assert (given["least"], len(given["runs"])) == (0.7, 1)
                continue
            assert given["log_format"] == "json", at
            assert given["metrics"].endswith((":9464", ":9465")), at


# Metrics


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of all metrics that are served anywhere, as Prometheus knows them."""
    kits = bank_and_shop(tmp_path_factory.mktemp("operations") / "consortium")
    authority = Authority(kits["bank"].path.parents[1] / "authority")
    revoke(authority, "shop", datetime.now(UTC))
    requests = Requests()
    requests.count("/predict", 200, 0.1)
    found = served(pages(WatchedService(lambda: InferenceState(1.0, False, False), requests))[METRICS])
    job = SiteJob("x", "scores", "running", 1.0, epoch=1, epochs=2, quiet_s=3.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteJobs, "now", lambda jobs, processes: (job,))
        for name in ("server", "bank"):
            kit = kits[name]
            install_list(kit.path, authority.list_path)
            kit.prepare(SiteFile(runs=kit.runs))
            part = kit.runs / "scores" / "parties" / str(kit.party)
            part.mkdir(parents=True)
            (part / "sending.json").write_text(json.dumps({"session": {"sent": 1, "received": 1}}))
            (part / "ledger.jsonl").write_text('{"total": 1.0}\n')
            (part / "drift.json").write_text('{"moved": []}')
            found |= served(pages(WatchedSite(kit, kit.runs, SiteWatch(is_up=True)))[METRICS])
    return found | {
        "veilgraph_revocation_list_due_timestamp_seconds"
    }  # of a kit with a list: test_certificates.py has one


def served(page: Callable[[], Any]) -> set[str]:
    text = page().content.decode()
    return {one.name for family in text_string_to_metric_families(text) for one in family.samples}


def test_the_page_has_every_metric_and_no_other(names: set[str]) -> None:
    page = find_page("operations.md").read_text(encoding="utf-8")
    assert set(re.findall(r"veilgraph_[a-z_]+", page)) == {name for name in names if name.startswith("veilgraph_")}
    (row,) = re.findall(r"^\| `veilgraph_jobs` \|.*$", page, re.MULTILINE)
    assert all(f"`{state}`" in row for state in STATES)


def test_alerts_name_metrics_and_labels_that_are_there(names: set[str]) -> None:
    units = {path.name for path in (FILES / "systemd").iterdir()}
    labels: dict[str, set[str]] = {"state": set(STATES), "status": {"401", "5.."}, "name": units}
    for rule in RULES:
        used = set(re.findall(r"veilgraph_\w+", rule["expr"]))
        assert used <= names, rule["alert"]
        assert used or re.search(r"\bup\{|\bnode_systemd_(unit_state|timer_last_trigger_seconds)\{", rule["expr"])
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', rule["expr"]):
            if label != "job":
                assert set(values.split("|")) <= labels[label], rule["alert"]
    jobs = {
        each["job_name"]
        for each in yaml.safe_load((FILES / "prometheus" / "scrape.yaml").read_text())["scrape_configs"]
    }
    assert {job for rule in RULES for job in re.findall(r'job="([^"]+)"', rule["expr"])} == jobs


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    alerts = [rule["alert"] for rule in RULES]
    assert re.findall(r"^### (Veilgraph\w+)$", RUNBOOK, re.MULTILINE) == alerts
    assert len(set(alerts)) == len(alerts)
    assert set(re.findall(r"veilgraph_[a-z_]+", RUNBOOK)) <= set(re.findall(r"veilgraph_\w+", str(ALERTS)))
    for rule in RULES:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["annotations"]["summary"]


# Units


HARDENED = {
    "User": "veilgraph",
    "UMask": "0077",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectProc": "invisible",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "MemoryDenyWriteExecute": "yes",
    "LockPersonality": "yes",
    "SystemCallArchitectures": "native",
    "LimitCORE": "0",
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_hardened(unit: Path) -> None:
    found = directives(unit)
    for key, value in HARDENED.items():
        assert (key, value) in found, key
        assert sum(key == other for other, _ in found) == 1, key
    filters = [value for key, value in found if key == "SystemCallFilter"]
    assert filters[:2] == ["@system-service", "~@privileged @resources @mount"]
    assert not any(word.startswith("@") for value in filters[2:] for word in value.split())
    assert all("--metrics-open" not in value for _, value in found)


def test_a_watch_that_finds_something_leaves_its_unit_failed() -> None:
    """Exit code 3 is no success and is not tried again; a timer of the same name starts it anew."""
    for timer in (FILES / "systemd").glob("*.timer"):
        found = dict(directives(timer.with_suffix(".service")))
        assert found["Type"] == "oneshot"
        assert not {"Restart", "SuccessExitStatus", "RemainAfterExit"} & found.keys()
        assert not found["ExecStart"].startswith("-")
        assert f'name="{timer.stem}.service", state="failed"' in str(RULES)
        assert f'name="{timer.name}"' in str(RULES)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """With a program that is there in place of the installed one, and no account to look up."""
    for unit in (*UNITS, *(FILES / "systemd").glob("*.timer")):
        text = unit.read_text(encoding="utf-8").replace("/opt/veilgraph/bin/veilgraph", "/bin/true")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if str(tmp_path) in line]


# Containers


def test_services_run_without_rights_and_publish_nothing() -> None:
    assert set(COMPOSE["services"]) == {"server", "bank", "shop"}
    for name, service in COMPOSE["services"].items():
        assert service["user"] == "10001:10001", name
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"ports", "privileged", "cap_add", "environment", "network_mode"} & set(service)
        writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
        assert writable == [f"./sites/{name}:/var/lib/veilgraph"], "its own kit, and nobody else's"
        assert all(name in volume for volume in service["volumes"])
        assert set(service["networks"]) == {"consortium", "watch"}
    assert COMPOSE["networks"]["watch"] == {"internal": True}


def test_the_image_has_nothing_secret_and_does_not_run_as_root() -> None:
    stages = CONTAINER.split("\nFROM ")
    assert re.search(r"^ARG BASE=docker\.io/library/python:3\.\d+-slim-\w+$", CONTAINER, re.MULTILINE), (
        "a tag, never latest"
    )
    assert all(stage.startswith("${BASE}") for stage in stages[1:])
    assert "sha256:<digest>" in CONTAINER
    sources = [
        word for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINER, re.MULTILINE) for word in line.split()[:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)
    assert "." not in sources, "what is not named is not in it"
    last = stages[-1]
    assert last.index("USER 10001:10001") < last.index("ENTRYPOINT")
    assert f"127.0.0.1:9464{READY}" in last.split("HEALTHCHECK")[1].split("ENTRYPOINT")[0]
    assert not re.search(r"password|passphrase|token|secret\b", last, re.IGNORECASE)


def test_waiting_is_no_longer_than_a_site_takes_to_end() -> None:
    """``net join`` gives its site 15 seconds, and then ends it."""
    waits = [int(value) for unit in UNITS for key, value in directives(unit) if key == "TimeoutStopSec"]
    assert min(waits) >= 30
    assert COMPOSE["services"]["server"]["stop_grace_period"] == "60s"


def test_a_sites_own_process_has_neither_torch_nor_scipy(tmp_path: Path) -> None:
    """It would take seconds to import, and 200 MB for as long as the site runs: jobs have processes of their own."""
    party = tmp_path / "party.yaml"
    nodes = "{file: a.csv, id: id, features: [{columns: x, missing: 0}]}"
    party.write_text(
        f"party: A\nnodes: {nodes}\nedges: []\n"
        "limits: {max_epsilon: 1, epsilon_unit: node, epsilon_neighbours: replacement}\n",
        encoding="utf-8",
    )
    script = (
        "import sys; import veilgraph.deploy.join; from pathlib import Path; "
        "from veilgraph.protocol.party_settings import read_party_settings as read; read(Path(sys.argv[1])); "
        "assert not {'torch', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script, str(party)], check=True)


# A cluster of Kubernetes


def manifests(text: str, name: str) -> dict[str, Any]:
    """The documents of a file by kind, each held to the schema of its kind where there is a package that has them."""
    found = {each["kind"]: each for each in yaml.safe_load_all(text)}
    with suppress(ModuleNotFoundError):
        validator = import_module("kubernetes_validate")
        for each in found.values():
            validator.validate(each, "1.30", strict=True)
    assert found, name
    return found


def rendered(template: str, values: dict[str, Any]) -> str:
    """As Helm fills it in; our templates have nothing but single values."""

    def value(found: re.Match[str]) -> str:
        path = found[1].split(".")
        at: Any = {"Release": {"Name": "fraud"}, "Values": values}
        for each in path:
            at = at[each]
        return str(at)

    return re.sub(r"\{\{ \.([A-Za-z.]+) \}\}", value, template)


@pytest.mark.parametrize("name", ["server", "holder"])
def test_kubernetes_files_are_of_their_schemas(name: str) -> None:
    found = manifests((FILES / "kubernetes" / f"{name}.yaml").read_text(encoding="utf-8"), name)
    assert set(found) == {"StatefulSet", "Service", "NetworkPolicy"}
    spec = found["StatefulSet"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in (*spec["containers"], *spec["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


# The labels by which NATS' own chart selects its pod, in a release named fraud.
CHOSEN = {
    "app.kubernetes.io/name": "nats",
    "app.kubernetes.io/instance": "fraud",
    "app.kubernetes.io/component": "nats",
}


def test_the_chart_runs_in_nats_own_chart_what_the_manifest_runs() -> None:
    """NATS' own chart merges maps and replaces lists: what its values give is what kubernetes/server.yaml has."""
    manifest = manifests((FILES / "kubernetes" / "server.yaml").read_text(encoding="utf-8"), "server")
    chart = yaml.safe_load((FILES / "helm" / "Chart.yaml").read_text(encoding="utf-8"))
    values = yaml.safe_load((FILES / "helm" / "values.yaml").read_text(encoding="utf-8"))
    assert [(each["name"], each["version"]) for each in chart["dependencies"]] == [("nats", "~2.12")]
    nats = values["nats"]
    assert "None" not in str(nats), "Helm 4.2 drops a null, so that the chart's own value would stay"
    off = (
        nats["natsBox"],
        nats["reloader"],
        nats["promExporter"],
        nats["config"]["cluster"],
        nats["config"]["monitor"],
    )
    assert list(off) == [{"enabled": False}] * 5, "with its monitor each probe would have two handlers"
    assert nats["container"]["patch"] == [{"op": "remove", "path": "/lifecycle"}], "the chart's own hook"

    stateful, pod = manifest["StatefulSet"]["spec"], manifest["StatefulSet"]["spec"]["template"]["spec"]
    made = nats["statefulSet"]["merge"]["spec"]
    assert made == {key: stateful[key] for key in ("replicas", "volumeClaimTemplates")}
    (wanted,) = pod.pop("containers")
    assert nats["podTemplate"]["merge"]["spec"] == pod
    image, container = nats["container"]["image"], nats["container"]["merge"]
    ports = {each["name"]: each["containerPort"] for each in container.pop("ports")}
    assert ports == {"nats": nats["config"]["nats"]["port"], "cluster": 6222}
    assert [each["containerPort"] for each in wanted.pop("ports")] == [ports["nats"]]
    assert {"name": "site", "image": f"{image['repository']}:{image['tag']}", **container} == wanted

    service = nats["service"]["merge"]["spec"]
    assert service["type"] == manifest["Service"]["spec"]["type"]
    assert [(each["port"], ports[each["targetPort"]]) for each in service["ports"]] == [(443, 8002), (6222, 6222)]
    template = (FILES / "helm" / "templates" / "network.yaml").read_text(encoding="utf-8")
    policy = manifests(rendered(template, values), "helm")["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == CHOSEN
    assert [each["port"] for rule in policy["ingress"] for each in rule["ports"]] == [8002, 6222]
