"""Jobs of every paradigm on this machine: train, resume, align the tables, and predict.

Every party runs the same code in a thread over the in-memory link, or in a process of its own over local sockets.
All a party keeps is in its part of the run directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from veilgraph.core.arguments import (
    check_flags,
    check_functions,
    check_mapping,
    check_several,
    check_text,
    check_whole,
    path_of,
    resuming,
    wrong_type,
)
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.randomness import private_seed
from veilgraph.core.text import human_bytes
from veilgraph.core.trace import merge_traces, write_trace
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.graph.party import load_party
from veilgraph.link.factory import IN_PROCESSES, IN_THREADS, LINKS
from veilgraph.nn.local.build import CustomModel
from veilgraph.protocol.aligning import check_alike
from veilgraph.protocol.costs import REPEATED, size_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.protocol.role import BEGINNING
from veilgraph.runtime.launch.inputs import GivenIds, GivenParties, gather_inputs, save_inputs, without_copies
from veilgraph.runtime.launch.processes import run_processes, run_threads
from veilgraph.runtime.session.party import SimulatedWork, check_spread, run_simulated
from veilgraph.runtime.store.lifetime import GivenLedgers, check_kept
from veilgraph.runtime.store.predictions import (
    Predictions,
    checked_nodes,
    join_predictions,
    load_by_holder,
    load_predictions,
    name_in_run,
    predicting_holder,
)
from veilgraph.runtime.store.results import summarise
from veilgraph.runtime.store.run_directory import LEAST_PASSES, Record, RunDirectory, load_tensors, view_size

Progress = Callable[[list[Record]], None]
"""Called now and then with all epochs' records so far."""


def check_job(settings: object, key: str = "settings") -> None:
    """Raise ``ConfigError`` unless ``settings`` is a job of a known paradigm; ``key`` is the argument's name."""
    if not isinstance(settings, JobSettings):
        raise wrong_type(key, settings, "a job", "give vg.Job(...); veilgraph.fit takes a dict and a path too")
    if not isinstance(settings, JOBS.get(settings.paradigm, ())):
        raise ConfigError(
            f"{key}: JobSettings are what jobs of all paradigms have, and not a job; make it with vg.Job(...)",
            code="no-paradigm",
            key=key,
            value=settings.paradigm,
        )


@dataclass(frozen=True)
class RunOptions:
    """How a job is run on this machine; none of it is part of the job.

    Attributes:
        custom: for ``model.local.model: custom``, makes a user's local model for a width.
        processes: run every party in a process of its own.
        link: what joins them, of ``LINKS``; None: memory, and sockets between processes.
        machines: holder → how many processes share its local part, as its own machines would
            (docs/guides/deployment.md);
        without ``processes`` for one holder only. The result is that of one machine, to rounding.
        progress: called now and then with all epochs' records so far.

    Raises ``ConfigError``: one is of another type, or there is no such link, or it joins no processes.
    """

    custom: CustomModel | None = None
    processes: bool = False
    link: str | None = None
    machines: Mapping[PartyId, int] = field(default_factory=dict)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_flags(processes=self.processes)
        check_functions(custom=self.custom, progress=self.progress)
        check_text(link=self.link)
        check_mapping("machines", self.machines, "holder → how many")
        for count in dict(self.machines).values():
            check_whole(machines=count)
            if count is None:
                raise wrong_type("machines", count, "a whole number (int)", "leave the holder out for one machine")
        LINKS.check("link", self.wire)
        if self.processes:
            LINKS[self.wire].invitations(())

    @property
    def wire(self) -> str:
        """Name of the link between the parties: ``link``, or the default for threads or for processes."""
        return (IN_PROCESSES if self.processes else IN_THREADS) if self.link is None else self.link

    def check(self, settings: JobSettings) -> None:
        """Raise ``ConfigError`` where ``custom`` or ``machines`` does not fit a job, or a library is missing for it."""
        if lacks := settings.passes.lacks:
            raise ConfigError(lacks, code="not-installed")
        if settings.inputs.is_custom != (self.custom is not None):
            raise ConfigError(
                f"custom={self.custom!r}: a custom local model is passed from Python as custom=<function of the "
                "width>, and only with model.local.model: custom"
            )
        if self.custom is not None and self.processes:
            raise ConfigError("custom: a Python object cannot be given to separate processes; use processes=False")
        for party, count in self.machines.items():
            if party not in settings.data.names:
                raise ConfigError(f"machines: {party!r} is not one of the holders {', '.join(settings.data.names)}")
            if count < 2:
                raise ConfigError(f"machines: {party}={count} must be at least 2; leave {party} out for one")
        if self.machines:
            check_spread(settings)
        if len(self.machines) > 1 and not self.processes:
            raise ConfigError("machines: two holders that have several need a process each; use processes=True")


def _check_warm_start(settings: JobSettings, earlier: Path) -> RunDirectory:
    """Open the run whose weights a job begins with; ``ConfigError``: another paradigm; ``RunError``: not complete."""
    fault = ""
    if not paradigm_of(settings).begins_with_weights:
        fault = f"jobs of paradigm={settings.paradigm} begin with weights that are drawn; leave it out"
    elif (other := RunDirectory.open(earlier).settings.paradigm) != settings.paradigm:
        fault = f"that run is of paradigm={other} and the job of {settings.paradigm}; give one of the same"
    if fault:
        raise ConfigError(f"begin_with={earlier}: {fault}", key="begin_with", value=str(earlier))
    run = RunDirectory.open(earlier)
    if run.summary is None or not run.party(SERVER).model_path.is_file():
        raise RunError(f"{earlier} is not a complete run with the server's part; finish it with: {resuming(earlier)}")
    return run


log = logging.getLogger("veilgraph")


@dataclass(frozen=True)
class TrainResult:
    """What a finished run holds; all of it can be read back with ``load_result``.

    The ``summary`` has figures in [0, 1], seconds per step and bytes sent; ``metrics`` one record per epoch;
    ``predictions`` every node's, at the label holder (horizontal: of the evaluator's).
    """

    path: Path
    summary: Record
    metrics: list[Record]
    predictions: Predictions


def train(
    settings: JobSettings,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    parties: GivenParties | None = None,
    ids: GivenIds | None = None,
    ledgers: GivenLedgers | None = None,
    private_seeds: bool = False,
    record_views: bool = False,
    view_passes: int | None = None,
    profile: bool = False,
    begin_with: str | Path | None = None,
    study: bool = False,
) -> TrainResult:
    """Train a job from the start; arguments and errors are those of ``veilgraph.fit``.

    ``out`` is made here. ``study``: do not warn of holders without a lifetime ledger.
    """
    out = path_of("out", out)
    earlier_path = None if begin_with is None else path_of("begin_with", begin_with, "a run")
    check_job(settings)
    check_flags(private_seeds=private_seeds, record_views=record_views, profile=profile)
    check_whole(view_passes=view_passes)
    options = options or RunOptions()
    if view_passes is not None and view_passes < 0:
        raise ConfigError(f"view_passes={view_passes!r} must be at least 1, or 0 for all passes")
    inputs = gather_inputs(settings, parties, ids, out, ledgers)
    settings = inputs.settings
    options.check(settings)
    earlier = None if earlier_path is None else _check_warm_start(settings, earlier_path)
    run = _create_run(out, inputs, private_seeds=private_seeds, warns=parties is not None and not study)
    if earlier is not None:
        tensors, _ = load_tensors(earlier.party(SERVER).model_path)
        run.party(SERVER).keeper.put(BEGINNING, tensors, {"run": str(earlier.path)})
    for party in (*settings.data.names, SERVER):
        if record_views:
            run.party(party).record_views(view_size(settings, view_passes))
        if profile:
            write_trace(run.party(party).trace_path, [], {})  # which every later training of the party renews
    with _discarded_if_refused(run):
        check_alike(run.settings)
        return _train(run, "train", options)


def resume(path: str | Path, options: RunOptions | None = None, *, restart: bool = False) -> TrainResult:
    """Finish a run that was cut off, bit-identical with the same ``machines``; a complete run is only read.

    ``restart``: begin again where need be; what that replaces stays until there is something newer at every party.
    """
    path = path_of("path", path, "a run")
    check_flags(restart=restart)
    options = options or RunOptions()
    run = RunDirectory.open(path)
    if run.summary is not None:
        return _result(run)
    options.check(run.settings)
    return _train(run, "restart" if restart else "resume", options)


def predict(
    path: str | Path,
    nodes: Sequence[int] | None = None,
    options: RunOptions | None = None,
    *,
    ids: Sequence[str] | None = None,
) -> Predictions:
    """Predict all nodes, or ``nodes`` or ``ids`` in their order, with a complete run; errors as ``Run.predict``.

    In an organisation's own part of a run its newest joint inference is read; ``RunError`` where that is elsewhere.
    """
    path = path_of("path", path, "a run")
    check_several("nodes", nodes, "rows")
    check_several("ids", ids, "ids")
    options = options or RunOptions()
    run = RunDirectory.open(path)
    settings = run.settings
    summary = run.result()
    if nodes is not None and ids is not None:
        raise ConfigError("nodes: ids are given as well; give one of them")
    options.check(settings)
    if not settings.data.is_apart:
        if nodes is not None and not settings.data.from_tables:
            checked_nodes(nodes, int(summary["nodes"]))
        if settings.outcome.predicts_named:
            name_in_run(run, nodes, ids)
        _run(run, "predict", options)
    if ids is not None:
        first, *more = load_by_holder(run).values()
        return (join_predictions([first, *more]) if more else first).of_ids(ids)
    everything = _predictions(run)
    return everything if nodes is None else everything.of_nodes(nodes)


def load_result(path: str | Path) -> TrainResult:
    """Reads a complete run. Raises ``RunError``: it is not complete."""
    return _result(RunDirectory.open(path_of("path", path, "a run")))


def _result(run: RunDirectory) -> TrainResult:
    return TrainResult(run.path, run.result(), run.metrics(), _predictions(run))


def align(
    settings: JobSettings,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    parties: GivenParties | None = None,
    ledgers: GivenLedgers | None = None,
) -> dict[PartyId, int]:
    """Finds the common nodes of all holders' tables and writes every party's graph into a run directory, made here.

    ``resume`` trains on it. In paradigm horizontal the tables are read and nothing common is looked for. ``parties``
    are tables in place of the job's files; the rest is as for ``train``.

    Returns holder → its number of nodes; vertical, under ``""``, how many are common. Raises ``VeilgraphError``: a
    table breaks a rule, or a party refuses.
    """
    out = path_of("out", out)
    check_job(settings)
    options = options or RunOptions()
    tables = parties is not None or settings.data.from_tables
    inputs = gather_inputs(settings, parties, None, out, ledgers) if tables else None
    if inputs is None or not inputs.settings.data.from_tables:
        raise ConfigError("data.parties: only tables are aligned; name each holder's party file (.yaml)")
    settings = inputs.settings
    run = _create_run(out, inputs, private_seeds=False, warns=parties is not None)
    with _discarded_if_refused(run):
        check_alike(run.settings)
        _run(run, "align", options)
    graphs = {name: load_party(run.party(name).graph_path) for name in settings.data.names}
    counts = {name: graph.num_nodes if settings.is_aligned else graph.common for name, graph in graphs.items()}
    return counts if not settings.is_aligned else counts | {"": graphs[settings.data.names[0]].common}


def _create_run(out: Path, inputs: Inputs, *, private_seeds: bool, warns: bool) -> RunDirectory:
    """Make a run's directory, with inputs and seeds; ``warns``: log which holders have no lifetime ledger."""
    run = RunDirectory.create(out, inputs.settings)
    save_inputs(inputs, run)
    for party in (*inputs.settings.data.names, SERVER):
        run.party(party).save_seed(private_seed() if private_seeds else inputs.settings.seed)
    if warns and inputs.passing:
        log.warning(
            "%s: releases are in the ledger of this run alone, and nothing counts those of other runs; name a folder: "
            "ledgers={%r: ...}",
            ", ".join(inputs.passing),
            inputs.passing[0],
        )
    return run


@contextmanager
def _discarded_if_refused(run: RunDirectory) -> Iterator[None]:
    """Leave nothing of a run that is refused before anything of the data is sent; else log what is left, and why."""
    try:
        yield
    except (ConfigError, DataError, RunError) as error:
        run.discard_unsent()
        if run.path.exists():
            log.warning("%s records what parties had sent by then; delete it, or train into another folder", run.path)
            raise
        if (said := without_copies(str(error), run)) == str(error):
            raise
        raise error.told(said) from None


def _train(run: RunDirectory, work: SimulatedWork, options: RunOptions) -> TrainResult:
    """Run a training and report its progress; then merge the parties' traces and write the summary."""
    said = [run.party(SERVER).view_size() is None or work == "resume"]
    report = options.progress or (lambda records: None)

    def tick() -> None:
        said[0] = said[0] or _warn_of_views(run)
        report(run.metrics())

    tick()
    _run(run, work, options, tick)
    report(run.metrics())
    parties = (*run.settings.data.names, SERVER)
    paths = [run.party(party).trace_path for party in parties]
    if all(path.is_file() for path in paths):
        for party, dropped in merge_traces(paths, run.trace_path).items():
            log.warning("%s: the last %d events of %s did not fit", run.trace_path, dropped, party)
    summarise(run, parties, run.settings.data.label_party)
    return _result(run)


def _warn_of_views(run: RunDirectory) -> bool:
    """Log how large recorded views will be, once all holders' graphs are saved; return whether it was logged."""
    settings, size, stores = run.settings, run.party(SERVER).view_size(), list(map(run.party, run.settings.data.names))
    if size is None or not all(store.graph_path.is_file() for store in stores):
        return False
    graphs = [load_party(store.graph_path) for store in stores]
    sizes = {graph.party: size_of(graph, settings.inputs) for graph in graphs}
    costs = paradigm_of(settings).session.costs(settings, graphs[0].common, sizes)
    about = "twice the bytes that are sent"
    if costs is not None:  # at both ends of each message, and what a holder hid in it; parties alike, about
        of = {stage.name: sum(stage.sent.values()) for stage in costs.stages}
        hid = {stage.name: of[stage.name] - stage.sent.get(SERVER, 0) for stage in costs.stages}
        sent = {name: (2 * of[name] + hid[name]) // (len(stores) + 1) for name in of}
        each = sum(count for name, count in sent.items() if name in REPEATED) // settings.train.epochs
        rest = sum(count for name, count in sent.items() if name not in REPEATED)
        passes = settings.train.epochs if size.passes is None else min(settings.train.epochs, size.passes + 1)
        if size.most_bytes is not None:
            passes = min(passes, 1 + max(LEAST_PASSES, (size.most_bytes - rest) // max(each, 1)))
        about = f"at most about {human_bytes((len(stores) + 1) * (rest + each * passes))}"
    log.warning(
        "views: %s in %s, with what parties must not show each other; once audited, delete them: rm -r %s",
        about,
        run.path,
        run.path / "parties" / "*" / "view",
    )
    return True


def _run(run: RunDirectory, work: SimulatedWork, options: RunOptions, tick: Callable[[], None] = lambda: None) -> None:
    """Run all parties in threads or processes, with the run locked; ``tick`` is called meanwhile."""
    settings, machines = run.settings, options.machines
    parties = (*settings.data.names, SERVER)

    def program(party: PartyId) -> Callable[[Link], None]:
        return lambda link: run_simulated(run, party, work, link, options.custom, machines.get(party))

    check_kept(run, settings)
    with run.lock():
        if options.processes:
            arguments = {party: [str(run.path), work, party, str(machines.get(party, 1))] for party in parties}
            run_processes("veilgraph.runtime.launch.worker", arguments, tick, options.wire)
        else:
            run_threads({party: program(party) for party in parties}, settings.timeout_s, tick, options.wire)


def _predictions(run: RunDirectory) -> Predictions:
    return load_predictions(run.party(predicting_holder(run)))
