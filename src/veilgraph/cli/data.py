"""Commands for tables and data sets: check, data check, data align, data export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
import yaml

from veilgraph.cli.app import (
    Out,
    Overrides,
    Processes,
    Replace,
    check_new,
    command,
    data,
    overridden,
    read_chosen,
    read_settings,
    refuse_given,
)
from veilgraph.cli.asking import NetOption, Within, ask_sites, check_options
from veilgraph.cli.output import echo, messages, results
from veilgraph.cli.passphrase import PassphraseFile
from veilgraph.cli.telling import plain, tell
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import fresh_path, write_whole
from veilgraph.core.types import Protected
from veilgraph.core.words import listed

if TYPE_CHECKING:  # seconds to import
    from veilgraph.protocol.costs import Costs, PartySizes
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.preset import Choice
    from veilgraph.tables.describe import PartyDescription


_OVERLAP: Final = 0.8
_MOST_NEIGHBOURS: Final = 1000
"""In a draft: of no tables, for the largest degree that they have would tell of one node."""
_LOST: Final = 0.2
"""Share of a file's edges that may be dropped without a word."""


@command("check", "veilgraph check jobs/digits.yaml", json=True)
def check_command(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job to check.")],
    overrides: Overrides = None,
    net: NetOption = None,
    within: Within = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Validate a job and its data and show what was understood; nothing is sent, trained or written.

    With --net the sites of a job across organisations are asked whether they would take part; nothing is aligned or
    trained there. Exit code 0 only if all would.
    """
    check_options(net, within, passphrase_file)
    settings, found = _check_job(file, overrides)
    if net is None:
        tell(found)
        return
    sites = ask_sites(settings, net, within, passphrase_file)
    accepted = all(site.state == "accepts" for site in sites)
    tell({**found, "sites": sites, "accepted": accepted})
    if not accepted:
        raise typer.Exit(1)


@command("check", "veilgraph data check bank/party.yaml", data, json=True)
def check_party_command(
    file: Annotated[Path, typer.Argument(metavar="PARTY.yaml", help="An organisation's own party file.")],
) -> None:
    """Read the tables that a party file describes, check every rule, and show what was understood; sends nothing."""
    tell({"file": file, **plain(_check_party(file))})


@command("init", "veilgraph data init customers.csv labels.csv transfers.csv --out party.yaml", data)
def init_command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILES...", help="Tables, in any order; most ids say which nodes there are.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The party file to write.")] = Path("party.yaml"),
    party: Annotated[str, typer.Option(metavar="NAME", help="This holder's name in the job.")] = "party",
    id_column: Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="Ids of the node table.")] = None,
    ids: Annotated[
        str | None,
        typer.Option(metavar="strip,lower", help="How ids are written alike, as at all holders; exact: as they stand."),
    ] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="What is to be predicted: classes.")] = None,
    no_label: Annotated[
        bool, typer.Option("--no-label", metavar="", help="This holder is not the label holder.")
    ] = False,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN:DATE:DATE",
            help="Train before the first day, validate before the second, test on the rest; or random.",
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(metavar="DATE", help="The day of which features tell: later edges are left out."),
    ] = None,
    missing: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What is no value; may be given several times.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(metavar="NAME", help="Of text that is not UTF-8, as cp1252.")] = None,
    leave_out: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="No feature; may be given several times.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A feature that would be left out; may be given several times."),
    ] = None,
    ends: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE:TARGET", help="The ends of a file of edges; may be given several times."),
    ] = None,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PARADIGM",
            help="Accept what a default job of it reveals, as sealed; may be given several times. Default: vertical.",
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="COLUMN:LOW:HIGH",
            help="Numbers that a column can have, which become 0 to 1; may be given several times.",
        ),
    ] = None,
    protect: Annotated[
        Protected | None,
        typer.Option(
            help="What an ε is to be about: features are then made of a node's own row alone, or weights of an edge's, "
            "as such jobs ask for. With --epsilon.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            metavar="E", min=0.001, help="Limit for life on the total ε of what --protect names, over all jobs."
        ),
    ] = None,
    most_neighbours: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The most neighbours that any node can have, by public knowledge; with --protect edge and node-edges. "
            f"Default: {_MOST_NEIGHBOURS}, to decide.",
        ),
    ] = None,
    replace: Replace = False,
) -> None:
    """Guess a party file from headers and some rows of tables, and say what is left to decide, and by which option."""
    from veilgraph.protocol.party_settings import parse_party_text  # noqa: PLC0415
    from veilgraph.tables.choices import Choices  # noqa: PLC0415
    from veilgraph.tables.draft import draft  # noqa: PLC0415
    from veilgraph.tables.guess import guess  # noqa: PLC0415
    from veilgraph.tables.sampling import sample  # noqa: PLC0415

    if (protect is None) != (epsilon is None):
        raise typer.BadParameter(
            "--protect says what a limit is about and --epsilon how much it allows; give both or neither",
            param_hint="--protect" if epsilon is None else "--epsilon",
        )
    of_edges = protect in ("edge", "node-edges")
    if most_neighbours is not None and not of_edges:
        raise typer.BadParameter(
            "is a limit of what protects edges; give it with --protect edge or node-edges, or leave it out",
            param_hint="--most-neighbours",
        )
    check_new(out, replace=replace)
    choices = Choices.read(
        id=id_column,
        ids=ids,
        label=label,
        labelled=not no_label,
        split=split,
        as_of=as_of,
        missing=tuple(missing or ()),
        encoding=encoding,
        left_out=tuple(leave_out or ()),
        features=tuple(feature or ()),
        ends=tuple(ends or ()),
        ranges=tuple(ranges or ()),
        protect=protect,
    )
    samples = [sample(path, choices.encoding, choices.missing) for path in files]
    drafted = draft(guess(samples, choices), party, out.absolute().parent, choices)
    text = drafted.text + _limits(accept or [], protect, epsilon, most_neighbours or _MOST_NEIGHBOURS)
    parse_party_text(text, str(out))
    write_whole(out, text.encode())
    undecided = (
        "limits.most_neighbours: how many can a node have at most, from what the data mean and not from these tables? "
        f"{_MOST_NEIGHBOURS} is a guess (--most-neighbours)"
    )
    for decision in (*drafted.decisions, *([undecided] if of_edges and most_neighbours is None else ())):
        echo(f"to decide: {decision}")
    echo(drafted.used)
    echo(f"{out} is written; check all rows with: veilgraph data check {out}")


def _strangers(found: Mapping[str, Sequence[str]]) -> str:
    """Some ids of each column that the node table lacks; empty where none are known."""
    said = [f"{column}: {', '.join(ids)}" for column, ids in found.items() if ids]
    return f" ({'; '.join(said)})" if said else ""


def _limits(paradigms: Sequence[str], protect: Protected | None, epsilon: float | None, most_neighbours: int) -> str:
    """What a party file accepts of default jobs of some paradigms, and its limit for life; else nothing.

    A name that a job's ε bounds need not be accepted.
    """
    from veilgraph.protocol.job_file import parse_job  # noqa: PLC0415
    from veilgraph.samples.organisations import accepting  # noqa: PLC0415

    drafted = {"holders": ["A", "B"], "label_holder": "A", "feature_scaling": "standard"}  # as ``init`` writes them
    jobs = [parse_job({"paradigm": each, "data": drafted}, "--accept") for each in paradigms]
    limits: dict[str, object] = dict(accepting(*jobs).get("limits", {})) if jobs else {}
    comments = [f"# what default jobs reveal: {', '.join(paradigms)}"] if limits else []
    if protect is not None:
        comments.append("# max_epsilon: of all that is ever released, over all jobs: docs/privacy.md")
        relation = "zero-out" if protect == "node-edges" else "replacement"
        limits |= {"max_epsilon": epsilon, "epsilon_unit": protect, "epsilon_neighbours": relation}
    if protect in ("edge", "node-edges"):
        limits["most_neighbours"] = most_neighbours
    return "\n".join([*comments, yaml.safe_dump({"limits": limits})]) if limits else ""


def _check_party(file: Path) -> PartyDescription:
    """Shows what a party file means, and returns it."""
    from veilgraph.protocol.party_settings import party_folder, read_party_settings  # noqa: PLC0415
    from veilgraph.report.party_table import party_tables  # noqa: PLC0415
    from veilgraph.tables.describe import NumericDescription, describe_party  # noqa: PLC0415
    from veilgraph.tables.draft import columns_used  # noqa: PLC0415

    settings = read_party_settings(file)
    with messages().status("reading the tables"):
        description = describe_party(settings, party_folder(file))
    for table in party_tables(description):
        results().print(table)
    if far := [each.column for each in description.features if isinstance(each, NumericDescription) and each.is_far]:
        echo(
            f"far out of range: {', '.join(far)}; a job with data.feature_scaling: none may refuse them: have it scale "
            "(standard, which preset auto chooses), or declare their range here (nodes.features, scale)"
        )
    if description.from_edges:
        echo(
            f"much like numbers of edges: {', '.join(description.from_edges)}; a column that is made of edges shows "
            "them at any ε: name such columns in nodes.columns_from_edges, and jobs that protect edges are refused "
            "while one is a feature"
        )
    for edges in description.edges:
        if edges.lost > _LOST:
            echo(
                f"{edges.file}: {edges.lost:.0%} of its rows are dropped, for an end is no id of the node table"
                f"{_strangers(edges.strangers)}; are ids written alike (ids), and are these the columns of ids? Links "
                "to other organisations' customers are used where both organisations list these people as nodes "
                "(paradigms vertical, horizontal and sealed)"
            )
    for column, area in description.leaks.items():
        echo(
            f"likely a leak: {column} alone tells the classes apart (AUC {area:.3f}); was it known before the label? "
            "Else take it out of nodes.features"
        )
    if (only := description.only_class) is not None:
        echo(
            f"all training nodes are of class {only!r}, and where no other holder has labels a job refuses them: label "
            "some of another class, or change nodes.split"
        )
    echo(columns_used(description.used, dict.fromkeys(description.left_out, "nodes.features does not name these")))
    echo(f"{file} is a valid party file; take part with: veilgraph net join KIT --party {file}")
    return description


def _check_job(job: Path, overrides: Sequence[str] | None) -> tuple[JobSettings, dict[str, object]]:
    """Shows what a job means; returns it, and what was found for programs."""
    from veilgraph.privacy.degree import too_many_units  # noqa: PLC0415
    from veilgraph.protocol.aligning import match_rates  # noqa: PLC0415
    from veilgraph.protocol.costs import size_of  # noqa: PLC0415
    from veilgraph.protocol.limits import delta_in_doubt, delta_too_large  # noqa: PLC0415
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415
    from veilgraph.report.plan import will_send  # noqa: PLC0415
    from veilgraph.report.tables import data_facts, data_table  # noqa: PLC0415

    settings, choices = read_chosen(job, overrides)
    found: dict[str, object] = {"job": job, "preset": {"name": settings.preset, "chose": choices}}
    notes = list[str]()

    def note(text: str) -> None:
        notes.append(text)
        echo(text)

    for name, text in () if settings.record is None else settings.record.told():
        echo(f"{name}: {' '.join(text.split())}")
    if settings.data.from_tables:
        paradigm_of(settings).check_tables(settings)
        described = [_check_party(path) for path in (settings.data.parties or {}).values()]
        nodes = min((each.nodes for each in described), default=None)
        costs = None if nodes is None else _costs(settings, nodes, map(_size, described))
        found["holders"] = described
        if doubt := delta_in_doubt(settings, nodes):
            note(doubt)
        if unknown := paradigm_of(settings).unknown_range(settings):
            note(unknown)
        _check_accepted(settings)
        for said in match_rates(settings):
            note(said)
        if costs is not None:
            common = f"if all {nodes} nodes of the shortest table are common, " if settings.is_aligned else ""
            note(f"{common}{will_send(costs)}")
    else:
        with messages().status("reading the data"):
            graphs = paradigm_of(settings).load(settings).graphs
            paradigm_of(settings).check_graphs(settings, graphs)
        if settings.is_aligned and (refused := delta_too_large(settings, graphs[0].common)):
            raise ConfigError(f"every holder refuses the job: {refused}")
        for graph in graphs:
            if graph.party in settings.noising and (refused := too_many_units(settings.privacy, graph)):
                raise ConfigError(f"{graph.party} refuses the job: {refused}")
        results().print(data_table(graphs, aligned=settings.is_aligned))
        costs = _costs(settings, graphs[0].common, map(size_of, graphs))
        found["holders"] = data_facts(graphs, aligned=settings.is_aligned)
        if costs is not None:
            note(will_send(costs))
    if settings.label_privacy is not None:
        learn = "learn" if len(settings.perturbing) > 1 else "learns"
        note(
            f"{listed(settings.perturbing)} {learn} from perturbed labels: ε {settings.label_privacy.epsilon:g} of one "
            "label, and none of features and edges (veilgraph budget says what that hides)"
        )
    _show_preset(settings, choices)
    way = "submit it with: veilgraph net submit" if settings.data.is_apart else "train it with: veilgraph train"
    echo(f"{job} is a valid job; {way} {job}")
    return settings, {**found, "sends_at_most": None if costs is None else costs.sent(), "notes": notes}


def _costs(settings: JobSettings, nodes: int, sizes: Iterable[PartySizes]) -> Costs | None:
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415

    return paradigm_of(settings).costs(settings, nodes, dict(zip(settings.data.names, sizes, strict=True)))


def _size(of: PartyDescription) -> PartySizes:
    from veilgraph.protocol.costs import PartySizes  # noqa: PLC0415

    splits, edges = of.splits or {}, sum(table.edges for table in of.edges)
    return PartySizes(of.num_features, edges, splits.get("train", 0), len(of.classes or {}), splits.get("val", 0))


def _show_preset(settings: JobSettings, choices: Sequence[Choice]) -> None:
    """Says what the job's preset chose of what the job leaves out, and why."""
    if not choices:
        echo(f"preset {settings.preset} chose nothing: what the job leaves out has the defaults of docs/settings.md")
    for choice in choices:
        echo(f"preset {settings.preset} chose {choice}, for {choice.why}")


def _check_accepted(settings: JobSettings) -> None:
    """Refuses a job that a holder would refuse, by its party file."""
    from veilgraph.protocol.acceptance import refusal_of  # noqa: PLC0415
    from veilgraph.protocol.aligning import split_by_labels  # noqa: PLC0415
    from veilgraph.protocol.organisation import Organisation  # noqa: PLC0415

    for party, path in (settings.data.parties or {}).items():
        own = Organisation.read(path, party)
        if said := refusal_of(own, settings, named=True) or split_by_labels(settings, own.settings):
            raise ConfigError(f"party {party!r} refuses the job: {said}")


@command("align", "veilgraph data align job.yaml --out runs/aligned", data, json=True)
def align_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="A job whose data.parties names party files.")],
    out: Out = None,
    overrides: Overrides = None,
    processes: Processes = False,
) -> None:
    """Find the nodes that all holders have in common, by private set intersection (PSI), and build every party's graph.

    Trains nothing. A horizontal job has the tables read and their columns compared. veilgraph train does either by
    itself; across organisations it is veilgraph net submit --work align.
    """
    settings = read_settings(job, overrides)
    from veilgraph.run.jobs import align  # noqa: PLC0415

    path = out or fresh_path(settings.name)
    with messages().status("aligning"):
        found = align(settings, path, processes=processes)
    common = found.pop("", None)
    of_which = "" if common is None else f", of which {common} are common to all holders"
    for holder, count in found.items():
        echo(f"{holder:24} {count} nodes{of_which}")
    echo(f"train with: veilgraph resume {path}")
    tell({"run": path, "nodes": found, "common": common})


@command("export", "veilgraph data export digits --out organisations --holders 3 --overlap 0.8", data)
def export_command(
    context: typer.Context,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="One of the data sets a job can name.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make.")] = Path("organisations"),
    holders: Annotated[int, typer.Option(min=2, max=256, help="Organisations to divide it among.")] = 2,
    overlap: Annotated[
        float | None,
        typer.Option(
            help="Share of the nodes that all of them know; horizontal: of the edges that a second one has; 0.8 where "
            "it is not given.",
            show_default=False,
        ),
    ] = None,
    paradigm: Annotated[
        Literal["vertical", "horizontal", "averaging"],
        typer.Option(
            help="vertical: columns of the same nodes; horizontal: nodes in the same columns; averaging: no node in "
            "common."
        ),
    ] = "vertical",
    seed: Annotated[int, typer.Option(min=0, help="Of the division.")] = 0,
    table_format: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="Of the tables.")] = "csv",
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Replace a setting of a job's data, as data.payments.customers=2000."
        ),
    ] = None,
) -> None:
    """Write a public data set as if organisations had exported their own tables: to try everything out.

    Payments are written as they are: each bank, a shop and a telecom, with a job for each paradigm.
    """
    from veilgraph.protocol.job_file import JOBS, parse_job  # noqa: PLC0415
    from veilgraph.samples.organisations import export_dataset, export_parts, job_of  # noqa: PLC0415
    from veilgraph.samples.payments_tables import export_payments  # noqa: PLC0415

    data: dict[str, object] = {"dataset": dataset, "holders": holders}
    usual = JOBS[paradigm]()
    by_nodes, shares_edges = not usual.is_aligned, usual.data.partition.by == "edges"
    if by_nodes and (shares_edges or overlap is not None):
        data["partition"] = {"overlap": _OVERLAP if overlap is None else overlap}
    if other := next((each for each in overrides or () if not each.startswith("data.")), None):
        raise typer.BadParameter(
            f"{other!r} is not of a job's data, as data.payments.customers=2000", param_hint="--set"
        )
    said = {"paradigm": paradigm, "preset": "paper", "data": data}
    settings = overridden(parse_job(said, source="export"), overrides).data
    if settings.payments is not None:
        sizes = "payments come divided; sizes are settings, as --set data.payments.banks=3"
        refuse_given(context, ["holders", "overlap", "paradigm"], sizes)
        with messages().status("writing tables"):
            files = export_payments(settings.payments, out, seed, table_format)
        show_exported(files, out.glob("*.yaml"))
        return
    with messages().status("writing tables"):
        if by_nodes:
            files = export_parts(settings, out, seed, table_format, job=job_of(dataset, paradigm))
        else:
            files = export_dataset(settings, out, _OVERLAP if overlap is None else overlap, seed, table_format)
    show_exported(files, [out / "job.yaml"])
    echo(f"or across organisations: veilgraph net provision {out / 'project.yaml'}, and {out / 'network-job.yaml'}")


def show_exported(files: Mapping[str, Path], jobs: Iterable[Path]) -> None:
    """Print parties' files, and how to check one and to train jobs of all."""
    for party, file in files.items():
        echo(f"{party:24} {file}")
    echo(f"check one with: veilgraph data check {next(iter(files.values()))}")
    for job in sorted(jobs):
        echo(f"train on this machine with: veilgraph train {job}")
