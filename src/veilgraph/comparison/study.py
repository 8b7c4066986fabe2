"""A job beside its alternatives, over several seeds: what training together is worth, before anybody agrees to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch

from veilgraph.comparison.figures import Estimate, Scored, estimates, figures
from veilgraph.comparison.ways import NOBODY, Kind, tested, ways
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, private_folder, write_whole
from veilgraph.core.text import called
from veilgraph.core.types import PartyId
from veilgraph.graph.build import build_graph, read_table
from veilgraph.graph.federation import find_label_holder
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.protocol.figures import CLASS_MEASURES
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs, Progress
from veilgraph.runtime.launch.jobs import align
from veilgraph.runtime.store.results import one_thread
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors, save_tensors
from veilgraph.samples.shipped import with_overrides
from veilgraph.tables.encode import fit_encoding

FOUND: Final = "comparison.json"
ABOUT: Final = "about.json"
_LABELS: Final = "labels"
ALARMS: Final = 0.05
_WAYS: Final = 3
"""Of what ways of one name mean: predictions that were kept under another meaning are not taken for these."""

Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""(what is trained, its epochs) → a block that shows its progress."""
Row = Callable[[str, Mapping[str, float]], None]
"""(seed and way, its figures on the test nodes)."""
At = Callable[[int, int], None]
"""(trainings done, in all)."""


@dataclass(frozen=True)
class Line:
    """One way.

    Attributes:
        shares: what others have to be shown for it.
        about: what is trained on what.
        figures: name → over seeds.
        gain: likewise, above the label holder alone; None of that one.
        to_job: likewise, above the job; None of that one, and at home.
    """

    name: str
    shares: str
    about: str
    figures: Mapping[str, Estimate]
    gain: Mapping[str, Estimate] | None
    to_job: Mapping[str, Estimate] | None


@dataclass(frozen=True)
class Study:
    """What was found.

    Attributes:
        alarms: share of the nodes that are looked at, of ``recall``.
        tested: test nodes of each seed.
        lines: the label holder's own first, the job's network at their head.
        recall_of: the class that is looked for, where there are two.
    """

    path: Path
    job: JobSettings
    alarms: float
    seeds: tuple[int, ...]
    tested: tuple[int, ...]
    lines: tuple[Line, ...]
    recall_of: str = "class 1"

    @property
    def judged(self) -> Line | None:
        """Of the job itself; None at home."""
        return next((line for line in self.lines if line.name == self.job.paradigm), None)

    def at_home(self) -> Line:
        """The best of what the label holder can do by itself."""
        own = [line for line in self.lines if line.shares == NOBODY]
        return max(own, key=lambda line: line.figures["auc"].value)

    def over_home(self) -> Estimate | None:
        """How far the job's AUC is above the best of what the label holder can do by itself; None at home."""
        return None if self.judged is None else self.judged.figures["auc"].above(self.at_home().figures["auc"])

    def record(self) -> dict[str, Any]:
        """As JSON has it."""

        def number(one: Estimate) -> dict[str, float | None]:
            return {"value": _number(one.value), "low": _number(one.low), "high": _number(one.high)}

        def told(found: Mapping[str, Estimate] | None) -> dict[str, dict[str, float | None]] | None:
            return None if found is None else {name: number(one) for name, one in found.items()}

        over_home = self.over_home()
        return {
            "job": self.job.name,
            "paradigm": self.job.paradigm,
            "seeds": list(self.seeds),
            "test_nodes": list(self.tested),
            "recall_at": self.alarms,
            "recall_of": self.recall_of,
            "at_home": self.at_home().name,
            "over_home": None if over_home is None else number(over_home),
            "ways": [
                {
                    "name": line.name,
                    "shares": line.shares,
                    "about": line.about,
                    "figures": told(line.figures),
                    "gain": told(line.gain),
                    "to_job": told(line.to_job),
                }
                for line in self.lines
            ],
        }


def compare_job(
    job: JobSettings,
    out: Path,
    *,
    seeds: int = 1,
    alarms: float = ALARMS,
    party: Path | None = None,
    alone: JobSettings | None = None,
    stage: Stage = lambda name, epochs: nullcontext(lambda records: None),
    row: Row = lambda name, found: None,
    at: At = lambda done, total: None,
) -> Study:
    """Trains a job and what it is compared with, on the same nodes, and judges all on the same test nodes.

    These are the label holder's; where holders have nodes of their own, they are all holders'.

    What was trained is kept: called again with the same directory, or with more seeds, only what is missing is.

    Args:
        job: that learns classes of nodes.
        out: a directory, made here, or of a comparison of the same job.
        seeds: the job's and those after it.
        alarms: share of the test nodes that are looked at, for ``recall``.
        party: the label holder's party file: compares what it reaches at home, from its tables alone, and needs nothing
            of the other holders.
        alone: of the same data, with settings for the label holder's network alone, which is then compared too.
        stage: shows the progress of one training.
        row: takes the figures of a way and a seed as soon as they are known.
        at: takes how many trainings of how many are done, of those that no earlier call kept.

    Raises:
        ConfigError: the job does not learn classes, or an argument breaks a rule.
        DataError: there are no test nodes, or the data break a rule.
        RunError: ``out`` is something else.
    """
    if seeds < 1:
        raise ConfigError(f"seeds={seeds} must be at least 1", key="seeds", value=seeds)
    if not 0 < alarms <= 1:
        raise ConfigError(f"alarms={alarms} must be above 0 and at most 1", key="alarms", value=alarms)
    if set(job.measures.figures) != set(CLASS_MEASURES.figures):
        raise ConfigError(
            f"paradigm={job.paradigm}: what it learns is not the class of a node, and ways are compared by that; train "
            "the job, and compare the run: veilgraph compare RUN",
            key="paradigm",
            value=job.paradigm,
        )
    if alone is not None and (alone.data != job.data or not alone.is_aligned):
        raise ConfigError(
            f"alone={alone.name!r}: its data are not those of job {job.name!r}, and both are judged on the same test "
            "nodes; give a job file with the same data",
            key="alone",
            value=alone.name,
        )
    job = _ranking(job)
    looked_for = _looked_for(job, party)
    _opened(out, job, party, alone)
    with (
        locked(out, f"{out} is being worked on by another process; wait for it, or choose another directory"),
        one_thread(),
    ):
        found = dict[str, list[Scored]]()
        kinds = dict[str, Kind]()
        used = tuple(job.seed + place for place in range(seeds))
        trained = 0
        for seed, inputs in inputs_of(job, used, party):
            kinds = ways(inputs, at_home=party is not None, alone_by=alone)
            later, before = len(kinds) * (used[-1] - seed), trained

            def here(done: int, of: int, later: int = later, before: int = before) -> None:
                nonlocal trained
                trained = before + done
                at(trained, before + of + later)

            for name, scored in _trained(inputs, kinds, out / f"seed-{seed}", stage, here):
                found.setdefault(name, []).append(scored)
                row(f"seed {seed}: {name}", figures(scored, alarms))
        study = _study(out, job, alarms, used, found, kinds, looked_for)
        write_whole(out / FOUND, json.dumps(study.record(), indent=1).encode())
    return study


def _study(
    out: Path,
    job: JobSettings,
    alarms: float,
    seeds: tuple[int, ...],
    found: Mapping[str, list[Scored]],
    kinds: Mapping[str, Kind],
    recall_of: str,
) -> Study:
    values = {name: estimates(each, alarms) for name, each in found.items()}
    first = next(iter(values))

    def above(name: str, other: str) -> Mapping[str, Estimate] | None:
        if name == other or other not in values:
            return None
        return {figure: one.above(values[other][figure]) for figure, one in values[name].items()}

    lines = tuple(
        Line(name, kinds[name].shares, kinds[name].about, one, above(name, first), above(name, job.paradigm))
        for name, one in values.items()
    )
    return Study(out, job, alarms, seeds, tuple(len(one.labels) for one in found[first]), lines, recall_of)


def _looked_for(job: JobSettings, party: Path | None) -> str:
    """The class that is looked for among two, by its name where the label holder's party file names it."""
    path = party or (job.data.parties or {}).get(job.data.label_party)
    label = None if path is None else Organisation.read(path, job.data.label_party).settings.nodes.label
    return called("1" if label is None else label.classes[1])


def _ranking(job: JobSettings) -> JobSettings:
    """The job with probabilities of all nodes as its output, which rank test nodes."""
    ranked = {"output": "probabilities", "named_nodes": None}
    return with_overrides(job, {key: value for key, value in ranked.items() if hasattr(job, key)})


def _opened(out: Path, job: JobSettings, party: Path | None, alone: JobSettings | None) -> None:
    try:
        private_folder(out)
        about = {
            "job": job.model_dump(mode="json"),
            "party": None if party is None else str(party.absolute()),
            "alone": None if alone is None else alone.model_dump(mode="json"),
            "ways": _WAYS,
        }
        path, text = out / ABOUT, json.dumps(about, sort_keys=True)
        if path.exists():
            if path.read_text(encoding="utf-8") != text:
                raise RunError(
                    f"{out} has a comparison of another job, or of another release; choose another directory",
                    key="out",
                    value=str(out),
                )
            return
        if others := sorted(each.name for each in out.iterdir() if not each.name.startswith(".")):
            raise RunError(
                f"{out} has other files ({others[0]}); choose a new directory, or one of a comparison",
                key="out",
                value=str(out),
            )
        write_whole(path, text.encode())
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error}); choose a writable directory") from error


def inputs_of(job: JobSettings, seeds: Sequence[int], party: Path | None) -> Iterator[tuple[int, Inputs]]:
    """Every seed's job with its holders' graphs, or the label holder's alone; tables are read and aligned once."""
    settings = [with_overrides(job, {"seed": seed}) for seed in seeds]
    if party is not None:
        graph = _at_home(job, party)
        ids = {graph.party: [str(row) for row in range(graph.num_nodes)]}
        yield from ((each.seed, Inputs(each, [graph], ids)) for each in settings)
    elif not job.data.from_tables:
        yield from ((each.seed, paradigm_of(each).data.load(each)) for each in settings)
    else:
        with TemporaryDirectory() as folder:
            run = Path(folder) / "aligned"
            align(job, run)
            directory = RunDirectory.open(run)
            graphs = [load_party(directory.party(name).graph_path) for name in job.data.names]
            ids = {name: directory.party(name).ids() or [] for name in job.data.names}
        yield from ((each.seed, Inputs(each, graphs, ids)) for each in settings)


def _at_home(job: JobSettings, party: Path) -> PartyGraph:
    """The label holder's graph, of all nodes of its tables."""
    holder: PartyId = job.data.label_party
    own = Organisation.read(party, holder)
    scaling = job.data.feature_scaling
    table = read_table(own.settings, own.folder, None, scaling)
    graph = build_graph(own.settings, own.folder, table, fit_encoding(table, scaling)).graph
    find_label_holder([graph], holder)
    return graph


def _trained(
    inputs: Inputs, kinds: Mapping[str, Kind], stored: Path, stage: Stage, at: At
) -> Iterator[tuple[str, Scored]]:
    """Every way's predictions of the test nodes; those that are not there yet are made, and kept."""
    path = stored.with_suffix(".safetensors")
    labels, rows = tested(inputs)
    kept = load_tensors(path)[0] if path.exists() else {_LABELS: labels}
    if not torch.equal(kept[_LABELS], labels):
        raise RunError(f"{path} is of other test nodes: the data have changed; choose another directory")
    missing = [name for name in kinds if name not in kept]
    for place, (name, kind) in enumerate(kinds.items(), 1):
        if name not in kept:
            at(missing.index(name), len(missing))
            with stage(f"seed {inputs.settings.seed}: {name} ({place} of {len(kinds)})", kind.epochs) as progress:
                likely = kind.way(progress)[rows.numpy()]
            kept = {**kept, name: torch.from_numpy(np.ascontiguousarray(likely))}
            save_tensors(path, kept, {})
            at(missing.index(name) + 1, len(missing))
        yield name, Scored(labels.numpy(), kept[name].numpy())


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)
