"""The commands that draft files which people write: a party file, and a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import typer
import yaml

from veilgraph.cli.app import Replace, check_new, command, data, option
from veilgraph.cli.output import echo
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.files import write_whole
from veilgraph.graph.settings import PARTY_FILE_SUFFIXES
from veilgraph.tables.column_settings import Duplicates
from veilgraph_wizard import (
    Protected,
    accounts_command,  # noqa: F401 - registers a command of its own
)

with deferred():
    from veilgraph.protocol.aligning import match_rates
    from veilgraph.protocol.job_file import parse_job
    from veilgraph.protocol.limits import LimitSettings
    from veilgraph.protocol.paradigm import paradigm_of
    from veilgraph.protocol.party_settings import PartySettings, parse_party_text, read_party_settings
    from veilgraph.samples.organisations import accepting
    from veilgraph_wizard.choices import Choices
    from veilgraph_wizard.draft import draft
    from veilgraph_wizard.guess import guess
    from veilgraph_wizard.job_draft import ProtectedJob, always_protected, draft_job
    from veilgraph_wizard.sampling import sample

_EPSILON: Final = 4.0
_MAJORITY: Final = "majority"
"""What --accept names beside paradigms: that a holder deals."""
_MOST_NEIGHBOURS: Final = 1000
"""In a draft: of no tables, for the largest degree that they have would tell of one node."""
_MAX_DELTA: Final = 1e-6  # enough for tables of fewer than a million pairs of nodes; sealed jobs have no δ


@command("init", "veilgraph data init customers.csv labels.csv transfers.csv --out party.yaml", data)
def init_command(
    files: list[Path],
    out: Path = Path("party.yaml"),
    party: str = "party",
    id_column: str | None = None,
    ids: str | None = None,
    label: str | None = None,
    no_label: bool = False,
    split: str | None = None,
    as_of: str | None = None,
    missing: list[str] | None = None,
    encoding: str | None = None,
    leave_out: list[str] | None = None,
    feature: list[str] | None = None,
    duplicates: Duplicates | None = None,
    ends: list[str] | None = None,
    directed: Literal["yes", "no"] | None = None,
    accept: list[str] | None = None,
    ranges: list[str] | None = None,
    protect: Protected | None = None,
    epsilon: Annotated[float | None, option(min=0.001)] = None,
    most_neighbours: Annotated[int | None, option(min=1)] = None,
    replace: Replace = False,
) -> None:
    """Guess a party file from headers and some rows of tables, and say what is left to decide, and by which option.

    Options:
        FILES... (files): Tables, in any order; most ids say which nodes there are.
        --out FILE: The party file to write.
        --party NAME: This holder's name in the job.
        --id COLUMN (id_column): Column of ids of the node table.
        --ids strip,lower: How ids are written alike, as at all holders; unpadded: no zeros in front; exact: as they
            stand.
        --label COLUMN: What is to be predicted: classes.
        --no-label: This holder has no labels.
        --split COLUMN:DATE:DATE: Train before the first day, validate before the second, test on the rest; or random;
            or random:FILE, by a key that all holders of the same customers have.
        --as-of DATE: The day on which features were known: later edges are left out.
        --missing TEXT: Text that stands for no value; may be given several times.
        --encoding NAME: Of text that is not UTF-8, as cp1252.
        --leave-out COLUMN: Column that is no feature; may be given several times.
        --feature COLUMN: A feature that would be left out; may be given several times.
        --duplicates: Which of several rows of one id counts; refuse: none may repeat.
        --ends SOURCE:TARGET: The ends of a file of edges; may be given several times.
        --directed: Whether edges lead from the source to the target alone.
        --accept NAME: Accept what a default job of a paradigm reveals, as sealed; or majority: that a holder deals
            random numbers (trust: majority). May be given several times. Default: vertical. What averaging.symbols
            reveal --protect label accepts, where tables are a union's.
        --range COLUMN:LOW:HIGH (ranges): Numbers that a column can have, which become 0 to 1; may be given several
            times.
        --protect: What an ε is to be about: features are then made of a node's own row alone, or weights of an edge's,
            as such jobs ask for. With --epsilon.
        --epsilon E: Limit for life on the total ε of what --protect names, over all jobs.
        --most-neighbours N: The most neighbours that any node can have, by public knowledge; with --protect edge and
            node-edges. Default: 1000, to decide.
    """
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
        duplicates=duplicates,
        ends=tuple(ends or ()),
        directed=None if directed is None else directed == "yes",
        ranges=tuple(ranges or ()),
        protect=protect,
        joins=not {"horizontal", "averaging"}.intersection(accept or ()) or "union" in (accept or ()),
    )
    samples = [sample(path, choices.encoding, choices.missing) for path in files]
    drafted = draft(guess(samples, choices), party, out.absolute().parent, choices)
    is_union = _is_union([parse_party_text(drafted.text, str(out))])
    limits = _limits(accept or [], protect, epsilon, most_neighbours or _MOST_NEIGHBOURS, joined=is_union)
    text = drafted.text + limits
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


def _limits(
    accepted: Sequence[str], protect: Protected | None, epsilon: float | None, most_neighbours: int, *, joined: bool
) -> str:
    """What a party file accepts of default jobs of some paradigms, whom it trusts to deal, and its limit for life.

    A name that a job's ε bounds need not be accepted. ``joined``: edges may end at other holders' nodes.
    """
    paradigms = [each for each in accepted if each != _MAJORITY]
    drafted = {"holders": ["A", "B"], "label_holder": "A", "feature_scaling": "standard"}  # as ``init`` writes them
    # Of a sealed job scores too: what ``init`` writes where classes are two; of a union both ways to have edges across.
    more: dict[str, object] = {"paradigm": "union", "across": "C", "data": {**drafted, "holders": ["A", "B", "C"]}}
    opened: dict[str, dict[str, Any]] = {"sealed": {"output": "margins"}}
    always = {each: unit for each in paradigms if (unit := always_protected(each))}
    if protect is not None and (
        apart := [each for each, unit in always.items() if (unit, paradigms) != (protect, [each])]
    ):
        raise ConfigError(
            f"--accept {apart[0]}: its jobs protect {always[apart[0]]} in a way of their own, and a party file has one "
            f"limit for life; draft one file with --accept {apart[0]} --protect {always[apart[0]]} alone, and another "
            "for other jobs"
        )
    unscaled = {"data": {**drafted, "feature_scaling": "none"}}  # what nodes keep to themselves is scaled by its range
    opened |= {each: unscaled | ProtectedJob(unit, epsilon or _EPSILON).settings(each) for each, unit in always.items()}
    jobs = [parse_job({"paradigm": each, "data": drafted, **opened.get(each, {})}, "--accept") for each in paradigms]
    jobs += [parse_job(more, "--accept")] if "union" in paradigms else []
    comments = [f"# what default jobs reveal: {', '.join(paradigms)}"] if jobs else []
    if protect == "edge" and not jobs:  # the job that ``init`` writes then
        noised: dict[str, object] = {"train": {"select_by": "last"}, "model": {"edge_slots": 1}, "output": "margins"}
        noised |= {"privacy": {"unit": "edge", "epsilon_total": epsilon}}
        jobs = [parse_job({"paradigm": "sealed", "data": drafted, **noised}, "--protect")]
        comments = ["# leakage: what a sealed job with noise on edges reveals beside them"]
    if protect == "label" and joined:  # likewise, and no default job reveals it
        of_symbols: dict[str, object] = {"label_privacy": {"epsilon": max(epsilon or _EPSILON, 1.0)}}
        of_symbols |= {"paradigm": "averaging", "averaging": {"symbols": {}}, "data": {"holders": ["A", "B"]}}
        jobs.append(parse_job(of_symbols, "--protect"))
        comments.append("# leakage: what a job of symbols reveals beside them")
    if protect == "training-record" and not jobs:
        usual = parse_job({"paradigm": "sealed"})
        noised = {"data": {**drafted, "feature_scaling": "none"}, **paradigm_of(usual).privacy.protecting(protect, 1)}
        jobs = [parse_job({"paradigm": "sealed", **noised}, "--protect")]
        comments = ["# leakage: what a sealed job with noise on training records reveals beside them"]
    limits: dict[str, object] = dict(accepting(*jobs).get("limits", {})) if jobs else {}
    if _MAJORITY in accepted:
        limits["trust"] = [*LimitSettings().trust, _MAJORITY]
    if protect is not None:
        comments.append("# max_epsilon: of all that is ever released, over all jobs: docs/explanation/privacy.md")
        relation = "replacement" if protect in ("edge", "label") or always else "zero-out"
        limits |= {"max_epsilon": epsilon, "epsilon_unit": protect, "epsilon_neighbours": relation}
    if protect in ("edge", "node-edges"):
        limits["most_neighbours"] = most_neighbours
    if protect == "edge" or (protect is not None and always):
        limits["max_delta"] = _MAX_DELTA
    return "\n".join([*comments, yaml.safe_dump({"limits": limits})]) if limits else ""


def _is_union(parties: Sequence[PartySettings]) -> bool:
    """Whether edges go to nodes of other holders, in all of their tables or in those of one that has nothing else."""
    whose = [any(edge.source_holder or edge.target_holder for edge in party.edges) for party in parties]
    return bool(parties) and (all(whose) or not all(party.has_nodes for party in parties))


@command("init", "veilgraph init bank.yaml shop.yaml telco.yaml --out job.yaml")
def init_job_command(
    holders: list[str],
    out: Path = Path("job.yaml"),
    label_holder: str | None = None,
    paradigm: str | None = None,
    select_by: str | None = None,
    protect: Protected | None = None,
    epsilon: Annotated[float | None, option(min=0.001)] = None,
    trust: Literal["dealer", "majority", "nobody"] | None = None,
    name: str | None = None,
    replace: Replace = False,
) -> None:
    """Write a job file, with comments, for holders whose party files are there or whose names are known.

    Options:
        HOLDERS... (holders): Their party files; or, where they are elsewhere, their names alone.
        --out FILE: The job file to write.
        --label-holder NAME: Holder of the labels to predict. Default: the only party file that has a label.
        --paradigm NAME: vertical, sealed, union, horizontal, averaging, node-dp. Default: union where all tables say
            whose nodes ends of edges are, or one has edges alone; sealed with --trust or --protect edge,
            training-record or node, averaging with --protect node-edges, and with --protect label where those tables
            are a union's; else vertical.
        --select-by FIGURE: Figure by which the best epoch is chosen: accuracy, auc, f1, loss. Default: of two classes
            auc, where the paradigm can.
        --protect: Add noise, so that --epsilon protects one edge, one label, a node with its label and edges, a
            training node's columns, or any node's columns (docs/explanation/privacy.md).
        --epsilon E: Total ε of what --protect names. Default: 4.
        --trust: Who deals random numbers in a sealed job or a union: an outsider, or one of three holders or more, by
            majority. Who deals reads everything together with one other. Two holders of a sealed job can do with
            nobody, at many times the cost (docs/explanation/sealed.md).
        --name NAME: Of the job. Default: that of its file.
    """
    check_new(out, replace=replace)
    files = [each for each in holders if each.endswith(PARTY_FILE_SUFFIXES)]
    if files and len(files) != len(holders):
        other = next(each for each in holders if each not in files)
        raise ConfigError(
            f"HOLDERS {other}: is no party file (.yaml), and {files[0]} is; give files alone or names alone"
        )
    twice = next((each for place, each in enumerate(holders) if each in holders[:place]), None)
    if twice is not None:
        raise ConfigError(f"HOLDERS {twice}: is given twice; give every holder once")
    parties = {Path(each): read_party_settings(Path(each)) for each in files}
    if protect is None and paradigm is not None:
        protect = cast(Protected, always_protected(paradigm)) or None
    if protect is None and epsilon is not None:
        raise ConfigError("--epsilon is for --protect: say what is to be protected, or leave it out")
    is_union, of_sealed = _is_union([*parties.values()]), ("edge", "training-record", "node")
    usual = "union" if is_union else "sealed" if trust is not None or protect in of_sealed else "vertical"
    joined = is_union and all(party.has_nodes for party in parties.values())
    usual = "averaging" if protect == "node-edges" or (protect == "label" and joined) else usual
    drafted = draft_job(
        out.name.split(".")[0] if name is None else name,
        paradigm or usual,
        parties or holders,
        label_holder,
        select_by,
        None if protect is None else ProtectedJob(protect, _EPSILON if epsilon is None else epsilon, joined),
        trust,
    )
    try:
        for said in match_rates(parse_job(yaml.safe_load(drafted.text), str(out))):
            echo(said)
    except DataError as error:
        if error.code == "no-common-id":
            raise
        echo(f"to mend before training: {error}")  # the job file is as good
    write_whole(out, drafted.text.encode())
    for decision in drafted.decisions:
        echo(f"to decide: {decision}")
    if paradigm is None and drafted.shows:
        echo(f"this is a vertical job: {drafted.shows} (--paradigm sealed)")
    echo(
        f"{out} is written; "
        + (
            f"check it with: veilgraph check {out}"
            if files
            else f"hand it in with: veilgraph net submit {out} --kit KIT"
        )
    )
