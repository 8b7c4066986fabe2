"""Kills and cuts at random moments of real jobs over a real broker: ``python -m benchmarks.kills [--faults 100]``.

Two consortia of processes on this machine: in one the server deals, in the other a dealer does and there are two
brokers. Each participant reaches the brokers by an HTTP proxy of its own, where its network is cut. One fault is played
in each job, at a moment drawn under the seed. Whatever was killed is started again, as a service manager would. The job
must end well with ``submit``'s retries, and its models are compared with an undisturbed run's, bit for bit. A sealed
job rounds by secret coins: there its predicted classes are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import torch
import yaml
from torch import Tensor

from benchmarks.proxy import Proxy
from docs.pages import find_page
from veilgraph.core.errors import VeilgraphError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER
from veilgraph.deploy.demo import free_port, join_site
from veilgraph.deploy.kit import PROXY_VARIABLE, Kit
from veilgraph.deploy.progress import SiteJobs
from veilgraph.deploy.project import ProjectSettings, provision
from veilgraph.deploy.submit import submit
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import load_result
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import accepting, export_dataset, export_parts

HOLDERS: Final = ("A", "B", "C")
ADMINISTRATOR: Final = "ops@example.org"
SECOND: Final = "127.0.0.1"
"""Another name of this machine, for a second broker."""
RETRIES: Final = 4
LONGEST_S: Final = 600.0
SAME_CLASSES: Final = 0.97
"""Least share of a sealed job's nodes that must have the class of the undisturbed run's."""

_TRAIN: Final = {"checkpoint_every": 5, "patience": None, "select_by": "last"}
_COMMON: Final[dict[str, Any]] = {"timeout_s": 120}
_ALIGNED: Final = {"holders": list(HOLDERS), "label_holder": "A"}
JOBS: Final[dict[str, dict[str, Any]]] = {
    "vertical": {"data": _ALIGNED, "model": {"dim": 8}, "train": {**_TRAIN, "epochs": 30}},
    "sealed": {"paradigm": "sealed", "data": _ALIGNED, "model": {}, "train": {**_TRAIN, "epochs": 20}},
    "horizontal": {
        "paradigm": "horizontal",
        "data": {"holders": list(HOLDERS), "feature_scaling": "standard"},
        "train": {**_TRAIN, "epochs": 30},
    },
    "averaging": {
        "paradigm": "averaging",
        "data": {"holders": list(HOLDERS), "label_holder": "A", "feature_scaling": "standard"},
        "model": {"dim": 8, "local": {"model": "gcn", "hops": 1}},
        "averaging": {"patience_s": 20},
        "train": {**_TRAIN, "epochs": 30},
    },
}
CONSORTIA: Final = {"server": ("vertical", "sealed"), "dealer": ("horizontal", "averaging")}
"""Who deals → the jobs that are played there."""


def job(kind: str, name: str, **changes: object) -> JobSettings:
    """One of ``JOBS``."""
    return parse_job({"name": name, **_COMMON, **JOBS[kind], **changes})


@dataclass
class Consortium:
    """Processes of a project, which are killed and started again."""

    kits: Mapping[str, Path]
    files: Mapping[str, Path]
    administrator: Kit
    proxies: Mapping[str, Proxy]
    sites: dict[str, Popen[bytes]] = field(default_factory=dict)

    @property
    def parties(self) -> dict[str, str]:
        """Party → the site that plays it."""
        dealer = self.administrator.roles.dealer
        return {**{name: name for name in HOLDERS}, SERVER: dealer or SERVER}

    def join(self, name: str) -> None:
        """Starts a site, which then connects by itself."""
        with environment(PROXY_VARIABLE, self.proxies[name].address):
            self.sites[name] = join_site(self.kits[name], self.files.get(name), 1)

    def pids(self, name: str, word: str) -> list[int]:
        """Processes of a site whose command has a word."""
        found, kit = [], str(self.kits[name])
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                of_kit = any(each == kit or each.startswith(f"{kit}/") for each in words)
                if of_kit and any(word in each for each in words):
                    found.append(int(entry.name))
        return found

    def run(self, party: str, name: str) -> RunDirectory:
        """A party's part of a job's run."""
        return RunDirectory.open(Kit.open(self.kits[self.parties[party]]).runs / name)

    def await_quiet(self) -> None:
        """Until no site has a job's process."""
        kits = [Kit.open(self.kits[name]) for name in self.sites]
        deadline = time.monotonic() + 120
        while any(each.state == "running" for kit in kits for each in SiteJobs(kit).now()):
            if time.monotonic() > deadline:
                raise RuntimeError("a job's process does not end")
            time.sleep(0.5)


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """A variable, for processes that are started in the block."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@contextmanager
def consortium(deals: str, out: Path) -> Iterator[Consortium]:
    """All sites of one project, joined."""
    settings = [job(kind, kind) for kind in CONSORTIA[deals]]
    data = DataSettings(dataset="synthetic", holders=len(HOLDERS))
    if deals == "server":
        files = export_dataset(data, out / "tables", overlap=0.8, seed=1)
    else:
        divided = data.model_copy(update={"partition": PartitionSettings(overlap=0.2)})
        files = export_parts(divided, out / "tables", 1, job=settings[0])
    for file in files.values():
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        content |= {**accepting(*settings), "seed": "job"}
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
    brokers = ("localhost", SECOND) if deals == "dealer" else ("localhost",)
    addresses = [{"host": host, "port": free_port(), "cluster": free_port()} for host in brokers]
    project = ProjectSettings.model_validate(
        {
            "name": f"kills-{deals}",
            "server": addresses[0],
            "brokers": addresses[1:],
            "holders": HOLDERS,
            "dealer": "D" if deals == "dealer" else None,
            "administrators": [ADMINISTRATOR],
        }
    )
    kits = provision(project, out / "project")
    found = Consortium(kits, files, Kit.open(kits[ADMINISTRATOR]), {name: Proxy() for name in kits})
    with environment(PROXY_VARIABLE, found.proxies[ADMINISTRATOR].address), ExitStack() as stack:
        stack.callback(end, found)
        for name in kits:
            if name != ADMINISTRATOR:
                found.join(name)
        for name in found.sites:
            await_connected(found, name)
        yield found


def await_connected(found: Consortium, name: str) -> None:
    """Until a site that was started says so."""
    deadline = time.monotonic() + 180
    while "is connected" not in (said := (found.kits[name] / "join.log").read_text(encoding="utf-8")):
        if found.sites[name].poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{name} did not join: {said}")
        time.sleep(0.2)


def end(found: Consortium) -> None:
    """Ends all sites."""
    for site in found.sites.values():
        site.send_signal(signal.SIGTERM)
    for site in found.sites.values():
        site.wait(60)


@dataclass(frozen=True)
class Fault:
    """What is done to whom; ``WORDS`` has the kinds."""

    kind: str
    who: str

    def play(self, found: Consortium, source: random.Random) -> None:
        """Does it, and what a service manager, or the network, does afterwards."""
        if self.kind in ("cut", "silence"):
            proxy = found.proxies[self.who]
            proxy.cut() if self.kind == "cut" else proxy.silence()
            time.sleep(source.uniform(1, 12) if self.kind == "cut" else source.uniform(3, 35))
            proxy.heal()
            return
        words = {"process": "veilgraph.deploy.part", "broker": "nats-server", "site": "veilgraph", "machine": ""}
        site = found.sites[self.who]
        killed = [site.pid] if self.kind == "site" else found.pids(self.who, words[self.kind])
        for pid in killed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if site.pid in killed:
            site.wait()
            time.sleep(source.uniform(1, 4))
            found.join(self.who)
            await_connected(found, self.who)


def faults(found: Consortium) -> list[Fault]:
    """Every kind for every participant that can have it."""
    parties, brokers = (
        list(found.parties.values()),
        [name for name in found.sites if Kit.open(found.kits[name]).has_broker],
    )
    return [
        *(Fault(kind, name) for kind in ("process", "cut", "silence") for name in parties),
        *(Fault(kind, name) for kind in ("site", "machine") for name in found.sites),
        *(Fault("broker", name) for name in brokers),
        *(Fault(kind, ADMINISTRATOR) for kind in ("cut", "silence")),
    ]


@dataclass(frozen=True)
class Outcome:
    """One job with one fault."""

    deals: str
    number: int
    job: str
    kind: str
    who: str
    moment_s: float
    took_s: float
    sessions: int
    error: str
    same: bool
    redrawn: bool = False
    """Whether the dealer's own seed is another one, since the reading of tables began anew."""


def model_of(found: Consortium, name: str) -> dict[str, Tensor]:
    """All parties' weights; shares summed."""
    tensors: dict[str, Tensor] = {}
    for party in (*HOLDERS, SERVER):
        path = found.run(party, name).party(party).model_path
        if not path.exists():  # a party without weights of its own
            continue
        for key, tensor in load_tensors(path)[0].items():
            if key.startswith("initial.share/"):
                tensors[key] = tensors[key] + tensor if key in tensors else tensor
            else:
                tensors[f"{party}/{key}"] = tensor
    return tensors


def same(found: Consortium, kind: str, one: str, other: str) -> bool:
    """Whether two runs of a job have the same bits, or, sealed, the same classes but for rounding."""
    first, second = (load_result(found.run("A", name).path).predictions for name in (one, other))
    if kind == "sealed":
        assert first is not None
        assert second is not None
        return bool((first.classes == second.classes).double().mean() >= SAME_CLASSES)
    ours, theirs = model_of(found, one), model_of(found, other)
    if not ours or ours.keys() != theirs.keys():
        return False
    return all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def submitted(found: Consortium, settings: JobSettings, disturb: Callable[[], None]) -> tuple[float, int, str]:
    """Seconds, sessions and error of a job that is disturbed meanwhile."""
    said: list[str] = []
    failed: list[str] = []

    def work() -> None:
        try:
            submit(
                found.administrator,
                settings,
                "train",
                resume=False,
                wait=True,
                report=said.append,
                retries=RETRIES,
                connect_s=120.0,
            )
        except VeilgraphError as error:
            failed.append(f"{type(error).__name__} ({error.code}): {error}")

    began = time.monotonic()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    disturb()
    thread.join(LONGEST_S)
    if thread.is_alive():
        failed.append(f"hangs after {LONGEST_S:g} s; said: {said[-3:]}")
    return time.monotonic() - began, sum(each.startswith("submitted") for each in said), "; ".join(failed)


def play(deals: str, which: Sequence[int], seed: int, out: Path, note: Callable[[Outcome], None]) -> None:
    """Faults in one consortium by their numbers, each in a job of its own."""
    with consortium(deals, out) as found:
        lengths: dict[str, float] = {}
        for kind in CONSORTIA[deals]:
            for name in (kind, f"{kind}-again"):
                lengths[kind], _, error = submitted(found, job(kind, name), lambda: None)
                if error:
                    raise RuntimeError(f"an undisturbed {kind} job failed: {error}")
            if not same(found, kind, kind, f"{kind}-again"):
                raise RuntimeError(f"two undisturbed {kind} jobs differ")
            if kind != "sealed":
                submitted(found, job(kind, f"{kind}-other", seed=7), lambda: None)
                if same(found, kind, kind, f"{kind}-other"):
                    raise RuntimeError(f"{kind} jobs of two seeds do not differ: nothing is compared")
            print(f"undisturbed, {kind}: {lengths[kind]:.1f} s", flush=True)
        drawn: list[Fault] = []
        order = random.Random(f"{deals}/{seed}")
        while len(drawn) <= max(which):
            drawn += order.sample(faults(found), len(faults(found)))
        for number in which:
            fault, source = drawn[number], random.Random(f"{deals}/{seed}/{number}")
            kind = CONSORTIA[deals][number % len(CONSORTIA[deals])]
            name, moment_s = f"{kind}-{number}", source.uniform(0, lengths[kind])

            def disturb(fault: Fault = fault, moment_s: float = moment_s, source: random.Random = source) -> None:
                time.sleep(moment_s)
                fault.play(found, source)

            took_s, sessions, error = submitted(found, job(kind, name), disturb)
            found.await_quiet()
            equal = redrawn = False
            with suppress(VeilgraphError, OSError):
                equal = same(found, kind, kind, name)
                seeds = {found.run(SERVER, each).party(SERVER).seed() for each in (kind, name)}
                redrawn = len(seeds) > 1
            note(Outcome(deals, number, kind, fault.kind, fault.who, moment_s, took_s, sessions, error, equal, redrawn))


WORDS: Final = {
    "process": "kill −9 of a party's job process",
    "site": "kill −9 of a supervisor, up again after 1 to 4 s",
    "machine": "kill −9 of a whole site, up again after 1 to 4 s",
    "broker": "kill −9 of a broker",
    "cut": "a participant cut off for 1 to 12 s",
    "silence": "a participant silent for 3 to 35 s",
}


def page(outcomes: Sequence[Outcome], seed: int) -> str:
    """What is published."""
    lines = [
        "# Kills and cuts",
        "",
        "For the operator: what a crash or a cut does to a running job.",
        "",
        f"Made by `python -m benchmarks.kills --faults {len(outcomes)} --seed {seed}` on {platform.machine()}, "
        f"{os.cpu_count()} cores. Jobs of three holders ({', '.join(JOBS)}) run with `--retries {RETRIES}` and one "
        "fault each, at a random moment. *Same*: the models of an undisturbed run, bit for bit; if sealed, its "
        f"predicted classes (at least {SAME_CLASSES:.0%}). *Went on*: no second session.",
        "",
        "| fault | jobs | same | went on | seconds, median (longest) |",
        "|---|---:|---:|---:|---:|",
    ]
    for kind, words in WORDS.items():
        some = [each for each in outcomes if each.kind == kind]
        if some:
            took = [each.took_s for each in some]
            equal, went = sum(each.same and not each.error for each in some), sum(each.sessions == 1 for each in some)
            times = f"{statistics.median(took):.0f} ({max(took):.0f})"
            lines.append(f"| {words} | {len(some)} | {equal} | {went} | {times} |")
    anew = sum(each.redrawn and not each.error and not each.same for each in outcomes)
    if anew:
        lines += ["", f"{anew} ended well with other bits: the dealer drew its own seed anew."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Plays everything and writes the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=find_page("kills.md"))
    parser.add_argument("--lines", type=Path, help="outcomes, a line of JSON each: those here are not played again")
    given = parser.parse_args()
    outcomes: list[Outcome] = []
    if given.lines and given.lines.exists():
        outcomes += [Outcome(**json.loads(line)) for line in given.lines.read_text(encoding="utf-8").splitlines()]

    def note(outcome: Outcome) -> None:
        outcomes.append(outcome)
        line = json.dumps(asdict(outcome))
        sys.stdout.write(f"{len(outcomes)}: {line}\n")
        sys.stdout.flush()
        if given.lines:
            with given.lines.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    for place, deals in enumerate(CONSORTIA):
        with tempfile.TemporaryDirectory() as folder:
            done = {each.number for each in outcomes if each.deals == deals}
            if left := [number for number in range((given.faults + place) // len(CONSORTIA)) if number not in done]:
                play(deals, left, given.seed, Path(folder), note)
    given.out.write_text(page(outcomes, given.seed), encoding="utf-8")


if __name__ == "__main__":
    main()
