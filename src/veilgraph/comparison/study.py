"""A job beside its alternatives, over several seeds: what training together is worth, before anybody agrees to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import numpy as np
import torch
from pydantic import BaseModel

from veilgraph.comparison.figures import Estimate, Scored, estimates, figures
from veilgraph.comparison.ways import NOBODY, Kind, nodes_of_test, ways
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, os_errors_as, private_folder, write_whole
from veilgraph.core.text import class_label
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
# Raise it when a way or the files mean something else: predictions that were kept before are then refused.
_WAYS: Final = 4

Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""(what is trained, its epochs) → a block that shows its progress."""
Row = Callable[[str, Mapping[str, float]], None]
"""(seed and way, its figures on the test nodes)."""
At = Callable[[int, int], None]
"""(trainings done, in all)."""


class Number(BaseModel):
    """A figure's mean over seeds with its 95 % interval; None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def of(cls, one: Estimate) -> Self:
        """An estimate rounded to 6 digits, NaN as None."""
        ends = (None if np.isnan(end) else round(float(end), 6) for end in (one.value, one.low, one.high))
        return cls(**dict(zip(cls.model_fields, ends, strict=True)))

    @property
    def known(self) -> tuple[float, float, float] | None:
        """Value, low and high; None where one is undefined."""
        if self.value is None or self.low is None or self.high is None:
            return None
        return self.value, self.low, self.high


Numbers = Mapping[str, Number]
"""Figure → over seeds."""


class Line(BaseModel):
    """One way: what others have to be shown for it (``shares``), and what is trained on what (``about``).

    ``gain`` is above the label holder alone, ``to_job`` above the job; None of these themselves.
    """

    name: str
    shares: str
    about: str
    figures: Numbers
    gain: Numbers | None
    to_job: Numbers | None


class Study(BaseModel):
    """The result of a comparison, as ``comparison.json`` has it.

    Attributes:
        test_nodes: of each seed.
        recall_at: share of the nodes that are looked at, of ``recall``, for ``recall_of`` of two classes.
        at_home: the name of the best of what the label holder can do by itself.
        over_home: how far the job's AUC is above that; None at home.
        ways: the label holder's own first, the job's network at their head.
    """

    job: str
    paradigm: str
    seeds: tuple[int, ...]
    test_nodes: tuple[int, ...]
    recall_at: float
    recall_of: str = "class 1"
    at_home: str
    over_home: Number | None
    ways: tuple[Line, ...]

    def way(self, name: str) -> Line | None:
        """The way of a name; None where there is none."""
        return next((way for way in self.ways if way.name == name), None)

    @property
    def best_at_home(self) -> Line:
        """The way of the highest AUC among those of the label holder by itself."""
        return next(way for way in self.ways if way.name == self.at_home)

    @property
    def aucs(self) -> dict[str, float | None]:
        """Way → its test AUC, None where it is undefined."""
        return {way.name: way.figures["auc"].value for way in self.ways}

    @classmethod
    def of(
        cls,
        job: JobSettings,
        kinds: Mapping[str, tuple[str, str]],
        found: Mapping[str, Sequence[Scored]],
        *,
        seeds: tuple[int, ...],
        alarms: float,
        recall_of: str = "class 1",
    ) -> Self:
        """Judge the predictions of each way; ``kinds``: way → what is shared for it, and what it is."""
        values = {name: estimates(each, alarms) for name, each in found.items()}
        first = next(iter(values))

        def above(name: str, other: str) -> Numbers | None:
            if name == other or other not in values:
                return None
            return {figure: Number.of(one.above(values[other][figure])) for figure, one in values[name].items()}

        at_home = max((name for name in values if kinds[name][0] == NOBODY), key=lambda name: values[name]["auc"].value)
        judged = values.get(job.paradigm)
        return cls(
            job=job.name,
            paradigm=job.paradigm,
            seeds=seeds,
            test_nodes=tuple(len(one.labels) for one in found[first]),
            recall_at=alarms,
            recall_of=recall_of,
            at_home=at_home,
            over_home=None if judged is None else Number.of(judged["auc"].above(values[at_home]["auc"])),
            ways=tuple(
                Line(
                    name=name,
                    shares=kinds[name][0],
                    about=kinds[name][1],
                    figures={figure: Number.of(each) for figure, each in one.items()},
                    gain=above(name, first),
                    to_job=above(name, job.paradigm),
                )
                for name, one in values.items()
            ),
        )


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
    """Train a job and what it is compared with, on the same nodes, and judge all on the same test nodes.

    These are the label holder's; where holders have nodes of their own, they are all holders'. What was trained is
    kept: called again with the same directory, or with more seeds, only what is missing is trained.

    Args:
        job: that learns classes of nodes.
        out: a directory, made here, or of a comparison of the same job.
        seeds: the job's and those after it.
        alarms: share of the test nodes that are looked at, for ``recall``.
        party: the label holder's party file: compares what it reaches at home, from its tables alone.
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
        raise ConfigError(f"seeds={seeds} must be at least 1")
    if not 0 < alarms <= 1:
        raise ConfigError(f"alarms={alarms} must be above 0 and at most 1")
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
    job = _with_probabilities(job)
    looked_for = _class_looked_for(job, party)
    _claim_directory(out, job, party, alone)
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

            for name, scored in _kept_predictions(inputs, kinds, out / f"seed-{seed}.safetensors", stage, here):
                found.setdefault(name, []).append(scored)
                row(f"seed {seed}: {name}", figures(scored, alarms))
        about = {name: (kind.shares, kind.about) for name, kind in kinds.items()}
        study = Study.of(job, about, found, seeds=used, alarms=alarms, recall_of=looked_for)
        write_whole(out / FOUND, json.dumps(study.model_dump(mode="json"), indent=1).encode())
    return study


def _class_looked_for(job: JobSettings, party: Path | None) -> str:
    """The class that is looked for among two, by its name where the label holder's party file names it."""
    path = party or (job.data.parties or {}).get(job.data.label_party)
    label = None if path is None else Organisation.read(path, job.data.label_party).settings.nodes.label
    return class_label("1" if label is None else label.classes[1])


def _with_probabilities(job: JobSettings) -> JobSettings:
    """The job changed to open probabilities of all nodes, so that test nodes can be ranked."""
    ranked = {"output": "margins", "named_nodes": None}
    return with_overrides(job, {key: value for key, value in ranked.items() if hasattr(job, key)})


def _claim_directory(out: Path, job: JobSettings, party: Path | None, alone: JobSettings | None) -> None:
    """Make ``out`` and note what it compares; ``RunError``: it has other files, or another comparison."""
    with os_errors_as(RunError, f"{out} cannot be written", "choose a writable directory"):
        private_folder(out)
        about = {
            "job": job.model_dump(mode="json"),
            "party": None if party is None else str(party.absolute()),
            "alone": None if alone is None else alone.model_dump(mode="json"),
            "ways": _WAYS,
        }
        path, text, fault = out / ABOUT, json.dumps(about), ""  # in order: the first party is the label holder
        if not path.exists():
            if others := sorted(each.name for each in out.iterdir() if not each.name.startswith(".")):
                fault = f"has other files ({others[0]}); choose a new directory, or one of a comparison"
            else:
                write_whole(path, text.encode())
        elif path.read_text(encoding="utf-8") != text:
            fault = "has a comparison of another job, or of another release; choose another directory"
        if fault:
            raise RunError(f"{out} {fault}", key="out", value=str(out))


def inputs_of(job: JobSettings, seeds: Sequence[int], party: Path | None) -> Iterator[tuple[int, Inputs]]:
    """Every seed's job with its holders' graphs, or the label holder's alone; tables are read and aligned once."""
    settings = [with_overrides(job, {"seed": seed}) for seed in seeds]
    if party is not None:
        graph = _label_holder_graph(job, party)
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


def _label_holder_graph(job: JobSettings, party: Path) -> PartyGraph:
    """Build the label holder's graph from its own tables, without aligning them."""
    own = Organisation.read(party, job.data.label_party)
    scaling = job.data.feature_scaling
    table = read_table(own.settings, own.folder, None, scaling)
    graph = build_graph(own.settings, own.folder, table, fit_encoding(table, scaling)).graph
    return find_label_holder([graph], job.data.label_party)


def _kept_predictions(
    inputs: Inputs, kinds: Mapping[str, Kind], path: Path, stage: Stage, at: At
) -> Iterator[tuple[str, Scored]]:
    """Yield each way's predictions of the test nodes, read from ``path`` or made and kept there."""
    labels, rows = nodes_of_test(inputs)
    facts = {"data": inputs.digest()}
    kept, found = load_tensors(path) if path.exists() else ({_LABELS: labels}, facts)
    if found != facts:
        fault = f"{path} has predictions of other data: the data have changed; choose another directory"
        raise RunError(fault, code="data-changed", key="out", value=str(path.parent))
    missing = [name for name in kinds if name not in kept]
    for place, (name, kind) in enumerate(kinds.items(), 1):
        if name not in kept:
            at(missing.index(name), len(missing))
            with stage(f"seed {inputs.settings.seed}: {name} ({place} of {len(kinds)})", kind.epochs) as progress:
                likely = kind.way(progress)[rows.numpy()]
            kept = {**kept, name: torch.from_numpy(np.ascontiguousarray(likely))}
            save_tensors(path, kept, facts)
            at(missing.index(name) + 1, len(missing))
        yield name, Scored(labels.numpy(), kept[name].numpy())
