"""Commands for files that people write, and for tables: schema, data check, align, export."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from veilgraph.cli.app import Out, Overrides, Processes, command, data, option, overridden, read_settings, refuse_given
from veilgraph.cli.output import echo, emit, messages, plain, results
from veilgraph.core.deferred import deferred
from veilgraph.core.files import fresh_path
from veilgraph.graph.settings import DATASETS

with deferred():
    from veilgraph.protocol import job_file
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.paradigm import paradigm_of
    from veilgraph.protocol.party_settings import party_folder, read_party_settings
    from veilgraph.report.tables import party_tables
    from veilgraph.runtime.launch.jobs import RunOptions, align
    from veilgraph.samples.organisations import export_dataset, export_parts, job_of
    from veilgraph.tables import describe

_OVERLAP: Final = 0.8
_NAMED: Final = 6
_LOST: Final = 0.2  # share of a file's edges that may be dropped without a word


@command("schema", "veilgraph schema job")
def schema_command(file: Literal["job", "party"]) -> None:
    """Print the JSON Schema of a file, for editors that complete and check keys.

    Options:
        (file): Of a job file, or of a party file.
    """
    echo(json.dumps(job_file.SCHEMAS[file](), indent=1))


@command("check", "veilgraph data check bank/party.yaml", data, json=True)
def check_party_command(file: Path, job: Path | None = None) -> None:
    """Read the tables that a party file describes, check every rule, and show what was understood; sends nothing.

    Options:
        PARTY.yaml (file): An organisation's own party file.
        --job JOB.yaml: Say as well how many edges to others' nodes are between holders of this job.
    """
    settings = None if job is None else job_file.read_job(job)
    if settings is not None and not settings.inputs.joins_others:
        raise typer.BadParameter(
            f"no edges to others' nodes are used in paradigm {settings.paradigm}; give a union job, or leave it out",
            param_hint="--job",
        )
    description = show_party(file, settings)
    in_job = [] if settings is None else [_use_in_job(each, settings) for each in description.edges if each.between]
    emit({"file": file, **plain(description), **({} if settings is None else {"in_job": in_job})})


def _use_in_job(edges: describe.EdgeDescription, job: JobSettings) -> dict[str, Any]:
    owners = [name for name in job.data.names if name != job.inputs.across]
    others = {name: count for name, count in edges.named().items() if name not in owners}
    stated = paradigm_of(job).session.stated(job, job.data.label_party, releases=False)
    _, degree = stated.get("neighbours", (0, None))  # of a job that computes over all edges of a node
    return {"file": edges.file, "across": edges.across_in(owners), "others": others, "largest_degree": degree}


def _across_words(edges: describe.EdgeDescription, job: JobSettings | None) -> list[str]:
    """Say which of a table's edges to others' nodes union jobs use, and which of them ``job`` does: one line each."""
    if job is not None and not job.inputs.joins_others:
        return [
            f"{edges.file}: {edges.across:,} of its edges join nodes of two holders ({_list_counts(edges.named())}) "
            f"and are left out: paradigm {job.paradigm} has edges between a holder's own nodes alone"
        ]
    within = sum(row.get(holder, 0) for holder, row in edges.between.items())
    loops, repeated = (sum(getattr(each, name) for each in edges.relations) for name in ("self_loops", "duplicates"))
    left_out = {
        "are within another holder, and left out": within,
        "go from a node to itself, and are left out": loops,
        "repeat an earlier one, and count once": repeated,
    }
    said = [f"{edges.across:,} join nodes of two holders ({_list_counts(edges.named())})"]
    said += [f"{count:,} {words}" for words, count in left_out.items() if count]
    hub, most = edges.hub
    found = [f"{edges.file}: of its edges, in a union job, {'; '.join(said)}"]
    found += [f"{edges.file}: node {hub} has the most edges, {most:,}, of pairs of nodes once in each direction"]
    if job is not None:
        used, others, limit = (_use_in_job(edges, job)[name] for name in ("across", "others", "largest_degree"))
        more = f"; {edges.across - used:,} name others, and are left out ({_list_counts(others)})" if others else ""
        found.append(f"{edges.file}: {used:,} join nodes of two holders of job {job.name}{more}")
        if limit is not None:
            refused = (1 << most.bit_length()) + (job.inputs.across is not None) > limit  # a bank states one at least
            found[1] += f"; job {job.name} takes {limit:,} at most, all holders' rounded up to powers of two together"
            found[1] += f", and fails if it uses all of these: leave out edges of nodes like {hub}" * refused
    return found


def _shared_words(edges: describe.EdgeDescription) -> str:
    """Say which rows and values of a table of what nodes share join nobody; empty where all do."""
    rows = sum(each.rows for each in edges.relations)
    left_out = {
        "rows that repeat the node and value of an earlier one, and count once": edges.repeated,
        "rows without a value, which join nobody": edges.valueless,
        "values of more nodes than edges.at_most, which join nobody": edges.crowded,
    }
    said = [f"{words}: {count:,}" for words, count in left_out.items() if count]
    return f"{edges.file}, of {rows:,} rows: {'; '.join(said)}" if said else ""


def _list_counts(counts: Mapping[str, int]) -> str:
    said = [f"{name} {count:,}" for name, count in [*counts.items()][:_NAMED]]
    return ", ".join(said) + (f" and {len(counts) - _NAMED:,} more" if len(counts) > _NAMED else "")


def _some_ids(found: Mapping[str, Sequence[str]]) -> str:
    """List some ids of each column that the node table lacks, in parentheses; empty without any."""
    said = [f"{column}: {', '.join(ids)}" for column, ids in found.items() if ids]
    return f" ({'; '.join(said)})" if said else ""


def _words_of_range(description: describe.PartyDescription, job: JobSettings | None) -> str:
    """Say which columns are far out of range, and what to do in a job, or in any; empty where none are in the way."""
    numbers = (each for each in description.features if isinstance(each, describe.NumericDescription))
    far = [each.column for each in numbers if each.is_far]
    scales = job is not None and (job.inputs.standardises or job.data.feature_scaling == "standard")
    if not far or scales:
        return ""
    # Where ε is of one node, means and deviations of all rows are refused.
    scaled = (
        "" if job is not None and job.inputs.per_node else "have it scale (standard, which preset auto chooses), or "
    )
    return (
        f"far out of range: {', '.join(far)}; a job with data.feature_scaling: none may refuse them: {scaled}declare "
        "their range here (nodes.features, scale)"
    )


def _words_of_categories(description: describe.PartyDescription) -> list[str]:
    """Say of each column how many nodes have a value that is none of its categories: one line each."""
    columns = (each for each in description.features if isinstance(each, describe.CategoricalDescription))
    return [
        f"{each.column}: {each.other:,} of {description.nodes:,} nodes have one of {each.others:,} values besides its "
        f"{len(each.counts):,} categories, and all of these count as none (other: zero). Name more under categories to "
        "tell them apart"
        for each in columns
        if each.other
    ]


def show_party(file: Path, job: JobSettings | None = None) -> describe.PartyDescription:
    """Read and show a party file's tables, with warnings; ``job``: also how it uses edges to others' nodes."""
    settings = read_party_settings(file)
    with messages().status("reading the tables"):
        description = describe.describe_party(settings, party_folder(file))
    for table in party_tables(description):
        results().print(table)
    if words := _words_of_range(description, job):
        echo(words)
    for words in _words_of_categories(description):
        echo(words)
    if description.from_edges:
        echo(
            f"much like numbers of edges: {', '.join(description.from_edges)}; a column that is made of edges shows "
            "them at any ε. Name such columns in nodes.columns_from_edges: jobs that protect edges are then refused, "
            "until you take them out of nodes.features"
        )
    for edges in description.edges:
        for words in _across_words(edges, job) if edges.between else ():
            echo(words)
        if words := _shared_words(edges):
            echo(words)
        if edges.lost > _LOST:
            echo(
                f"{edges.file}: {edges.lost:.0%} of its rows are dropped, for an end is no id of the node table"
                f"{_some_ids(edges.strangers)}. Compare these with the node table: write ids alike (ids), or name "
                "other columns (source, target). List other organisations' customers as nodes to use links to them "
                "(paradigms vertical, horizontal and sealed)"
            )
    for column, area in description.leaks.items():
        echo(
            f"likely a leak: {column} alone tells the classes apart (AUC {area:.3f}). If it was not known before the "
            f"label, take it out of nodes.features (veilgraph data init --leave-out {column})"
        )
    if (only := description.only_class) is not None:
        echo(
            f"all training nodes are of class {only!r}. Jobs refuse that unless another holder has labels: label nodes "
            "of another class, or change nodes.split"
        )
    echo(
        describe.columns_used(
            description.used, dict.fromkeys(description.left_out, "nodes.features does not name these")
        )
    )
    echo(f"{file} is a valid party file; take part with: veilgraph net join KIT --party {file}")
    return description


@command("align", "veilgraph data align job.yaml --out runs/aligned", data, json=True)
def align_command(job: Path, out: Out = None, overrides: Overrides = None, processes: Processes = False) -> None:
    """Find the nodes that all holders have in common, by private set intersection (PSI), and build every party's graph.

    Trains nothing. A horizontal job has the tables read and their columns compared. veilgraph train does either by
    itself; across organisations it is veilgraph net submit --work align.

    Options:
        JOB.yaml (job): A job whose data.parties names party files.
    """
    settings = read_settings(job, overrides)

    path = out or fresh_path(settings.name)
    with messages().status("aligning"):
        found = align(settings, path, options=RunOptions(processes=processes))
    common = found.pop("", None)
    of_which = "" if common is None else f", of which {common} are common to all holders"
    for holder, count in found.items():
        echo(f"{holder:24} {count} nodes{of_which}")
    echo(f"train with: veilgraph resume {path}")
    emit({"run": path, "nodes": found, "common": common})


@command("export", "veilgraph data export digits --out organisations --holders 3 --overlap 0.8", data)
def export_command(
    context: typer.Context,
    dataset: str,
    out: Path = Path("organisations"),
    holders: Annotated[int, option(min=2, max=256)] = 2,
    overlap: Annotated[float | None, option(show_default=False)] = None,
    paradigm: Literal["vertical", "horizontal", "averaging"] = "vertical",
    seed: Annotated[int, option(min=0)] = 0,
    table_format: Literal["csv", "parquet"] = "csv",
    schema: str | None = None,
    overrides: list[str] | None = None,
) -> None:
    """Write a public data set as if organisations had exported their own tables: to try everything out.

    Payments are written as they are: each bank, a shop and a telecom, with a job for each paradigm.

    Options:
        DATASET (dataset): One of the data sets a job can name.
        --out DIR: Folder to make.
        --holders: Organisations to divide it among.
        --overlap: Share of the nodes that all of them know; horizontal: of the edges that a second one has; 0.8 where
            it is not given.
        --paradigm: vertical: columns of the same nodes; horizontal: nodes in the same columns; averaging: no node in
            common.
        --seed: Of the division.
        --format (table_format): Of the tables.
        --schema NAME: Of payments: columns of published data, amlworld or pets; no party files.
        --set KEY=VALUE (overrides): Replace a setting of a job's data, as data.payments.customers=2000.
    """
    data: dict[str, object] = {"dataset": dataset, "holders": holders}
    usual = job_file.JOBS.find("--paradigm", paradigm)()
    by_nodes, shares_edges = not usual.is_aligned, usual.data.partition.by == "edges"
    if by_nodes and (shares_edges or overlap is not None):
        data["partition"] = {"overlap": _OVERLAP if overlap is None else overlap}
    if other := next((each for each in overrides or () if not each.startswith("data.")), None):
        raise typer.BadParameter(
            f"{other!r} is no key of data; give one as in data.payments.customers=2000", param_hint="--set"
        )
    said = {"paradigm": paradigm, "preset": "paper", "data": data}
    settings = overridden(job_file.parse_job(said, source="export"), overrides).data
    found = DATASETS[dataset]
    if schema is not None and schema not in found.schemas:
        there = ", ".join(found.schemas) or f"none for {dataset}"
        raise typer.BadParameter(f"{schema!r} is no schema; there are: {there}", param_hint="--schema")
    if why := found.comes_divided:
        refuse_given(context, ["holders", "overlap", "paradigm"], why)
        more = {} if schema is None else {"schema": schema}
        with messages().status("writing tables"):
            files = found.export_tables(settings, out, seed, table_format, **more)
        show_exported(files, out.glob("*.yaml"), party_files=schema is None)
        return
    with messages().status("writing tables"):
        if by_nodes:
            files = export_parts(settings, out, seed, table_format, job=job_of(dataset, paradigm))
        else:
            files = export_dataset(settings, out, _OVERLAP if overlap is None else overlap, seed, table_format)
    show_exported(files, [out / "job.yaml"])
    echo(f"or across organisations: veilgraph net provision {out / 'project.yaml'}, and {out / 'network-job.yaml'}")


def show_exported(files: Mapping[str, Path], jobs: Iterable[Path], *, party_files: bool = True) -> None:
    """Print parties' files, and how to check one and to train jobs of all; or the tables, and how to go on."""
    for party, file in files.items():
        echo(f"{party:24} {file}")
    party, file = next(iter(files.items()))
    if party_files:
        echo(f"check one with: veilgraph data check {file}")
    else:
        echo(f"make a node table with: veilgraph data accounts {file} --holder {party}")
    for job in sorted(jobs):
        echo(f"train on this machine with: veilgraph train {job}")
