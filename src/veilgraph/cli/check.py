"""Commands that say beforehand what a job is, sends and costs: check, budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from veilgraph.cli.app import (
    Overrides,
    PassphraseFile,
    command,
    counts_by_party,
    open_kit,
    option,
    read_chosen,
    read_settings,
)
from veilgraph.cli.data import show_party
from veilgraph.cli.output import echo, emit, messages, plain, results
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError
from veilgraph.core.text import listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.job import JobSettings, adds_noise, perturbing
from veilgraph.protocol.preset import Choice

with deferred():
    from veilgraph.deploy import checking
    from veilgraph.deploy.submit import check_names
    from veilgraph.privacy import aggregation
    from veilgraph.privacy.lifetime_ledger import Lifetime
    from veilgraph.protocol import acceptance, aligning, limits, party_settings
    from veilgraph.protocol.costs import Costs, PartySizes, size_of
    from veilgraph.protocol.organisation import Organisation
    from veilgraph.protocol.paradigm import paradigm_of
    from veilgraph.report import ledgers, noise, tables
    from veilgraph.report.budget import protection_of
    from veilgraph.tables.columns import count_common
    from veilgraph.tables.describe import PartyDescription


_EACH: Final = "NAME=NUMBER, once for every holder, where the job's data are not on this machine"
_TOTALS: Final = "1,2,4,8,16,32,64"
_MBIT, _ROUND_TRIP_MS = 1000.0, 1.0


@command("check", "veilgraph check jobs/digits.yaml --costs", json=True)
def check_command(
    file: Path,
    overrides: Overrides = None,
    show_costs: bool = False,
    bandwidth: Annotated[float | None, option(min=0.001)] = None,
    round_trip: Annotated[float | None, option(min=0.0)] = None,
    nodes: Annotated[int | None, option(min=1)] = None,
    training: Annotated[int | None, option(min=1)] = None,
    classes: Annotated[int | None, option(min=2)] = None,
    validation: Annotated[int | None, option(min=1)] = None,
    columns: list[str] | None = None,
    edges: list[str] | None = None,
    net: Path | None = None,
    within: Annotated[float | None, option(min=1)] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Validate a job and its data and show what was understood; nothing is sent, trained or written.

    --costs shows what the job will send. It takes the data that are here or, without reading them, the sizes given.
    --net asks the sites of a job across organisations whether they would take part. The exit code is 0 only if all
    would; nothing is aligned or trained there.

    Options:
        JOB.yaml (file): The job to check.
        --costs (show_costs): Show also what each stage sends, how often parties wait for each other, and the memory
            that each needs.
        --bandwidth MBIT: With --costs: megabits that a party sends in a second. Default: 1000.
        --round-trip MS: With --costs: milliseconds of a round trip. Default: 1.
        --nodes N: With --costs: nodes common to all holders. Give all sizes or none.
        --training T: Training nodes.
        --classes C: Classes.
        --validation V: Validation nodes, of a job that judges its steps.
        --columns NAME=F: Feature columns: NAME=NUMBER, once for every holder, where the job's data are not on this
            machine.
        --edges NAME=E: Directed edges: NAME=NUMBER, once for every holder, where the job's data are not on this
            machine.
        --net KIT: Ask the holders as well, with an administrator's kit: each site says whether it would take part.
        --within SECONDS: With --net: longest wait for the answers. Default: 120.
    """
    sizes: dict[str, Any] = {"--nodes": nodes, "--training": training, "--classes": classes, "--validation": validation}
    sizes |= {"--columns": columns, "--edges": edges}
    needs_net, needs_costs = None if net is not None else "--net", None if show_costs else "--costs"
    for_net = {"--within": within, "--passphrase-file": passphrase_file}
    for_costs = {"--bandwidth": bandwidth, "--round-trip": round_trip, **sizes}
    for given, needs in ((for_net, needs_net), (for_costs, needs_costs)):
        for name, value in given.items():
            if value is not None and needs is not None:
                raise typer.BadParameter(f"is for {needs}; give both, or leave it out", param_hint=name)
    settings, choices = read_chosen(file, overrides)
    if net is not None:
        check_names(settings)
    found: dict[str, object] = {"job": file, "preset": {"name": settings.preset, "chose": choices}}
    for name, text in () if settings.record is None else settings.record.told():
        echo(f"{name}: {' '.join(text.split())}")
    if any(given is not None for given in sizes.values()):
        common, parts = _given_sizes(settings, sizes)
        costs = paradigm_of(settings).session.costs(settings, common, parts)
        found["notes"] = notes = _expected_gain(settings, common, parts)
        _print_with_notes(None, notes)
    else:
        more, costs = _check_data(settings)
        found |= more
    if show_costs:
        known = costs or _refuse_costs(settings)
        found["costs"] = _show_costs(known, bandwidth or _MBIT, _ROUND_TRIP_MS if round_trip is None else round_trip)
    if settings.duties.dealing not in (None, SERVER):
        echo(paradigm_of(settings).words.collusion(settings))
    _show_preset(settings, choices)
    train, submit = f"train it with: veilgraph train {file}", f"hand it in with: veilgraph net submit {file} --kit KIT"
    echo(f"{file} is a valid job; {submit if settings.data.is_apart else train}")
    if net is None:
        emit(found)
        return
    sites = _ask_sites(settings, net, within, passphrase_file)
    accepted = all(site.state == "accepts" for site in sites)
    emit({**found, "sites": sites, "accepted": accepted})
    if not accepted:
        raise typer.Exit(1)


def _check_data(settings: JobSettings) -> tuple[dict[str, object], Costs | None]:
    """Show a job's data; refuse what a party would refuse; return facts for JSON, and costs if they are known."""
    paradigm, costs, common, notes = paradigm_of(settings), None, "", list[str]()
    holders: object
    if lacks := settings.passes.lacks:
        raise ConfigError(lacks, code="not-installed")

    def note(*said: str | None) -> None:
        told = list(filter(None, said))
        notes.extend(told)
        _print_with_notes(None, told)

    if settings.data.from_tables:
        paradigm.data.check_tables(settings)
        described = [show_party(path, settings) for path in (settings.data.parties or {}).values()]
        holders, named = described, aligning.table_ids(settings)
        nodes = min((each.nodes for each in described), default=None)
        if settings.is_aligned and named:
            nodes = count_common(named.values())
            common = f"with the {nodes:,} nodes that are common, "
        note(*aligning.match_rates(settings, named))
        if nodes is not None and (nodes or not settings.is_aligned):
            sizes = {each.party: _party_sizes(each, settings) for each in described}
            costs = paradigm.session.costs(settings, nodes, sizes)
            if refused := paradigm.guarantee.too_weak(settings, sizes):
                raise ConfigError(refused, code="too-weak")
            note(*_expected_gain(settings, nodes, sizes))
        note(limits.delta_in_doubt(settings, nodes), paradigm.data.unknown_range(settings))
        _check_parties_accept(settings, described, nodes if settings.is_aligned else None)
    else:
        with messages().status("reading the data"):
            inputs = paradigm.data.load(settings)
            graphs, ids = inputs.graphs, inputs.ids
            paradigm.data.check_graphs(settings, graphs)
        if settings.is_aligned and (refused := limits.delta_too_large(settings, graphs[0].common)):
            raise ConfigError(f"every holder refuses the job: {refused}")
        for graph in graphs:
            has_delta = graph.party in settings.duties.noising and not settings.noise.counts_votes
            if has_delta and (refused := aggregation.too_many_units(settings.privacy, graph)):
                raise ConfigError(f"{graph.party} refuses the job: {refused}")
        results().print(tables.data_table(graphs, aligned=settings.is_aligned))
        sizes = {graph.party: size_of(graph, settings.inputs, ids.get(graph.party, ())) for graph in graphs}
        costs = paradigm.session.costs(settings, graphs[0].common, sizes)
        note(*_expected_gain(settings, graphs[0].common, sizes))
        holders = tables.data_facts(graphs, aligned=settings.is_aligned)
    if costs is not None:
        note(f"{common}{tables.will_send(costs)}")
    if settings.label_privacy is not None and not settings.noise.learns_true_labels:
        learn = "learn" if len(perturbing(settings)) > 1 else "learns"
        note(
            f"{listed(perturbing(settings))} {learn} from perturbed labels: ε {settings.label_privacy.epsilon:g} of "
            "one label, and none of features and edges (veilgraph budget says what that hides)"
        )
    return {"holders": holders, "sends_at_most": None if costs is None else costs.sent(), "notes": notes}, costs


def _expected_gain(settings: JobSettings, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> list[str]:
    return paradigm_of(settings).guarantee.expected_gain(settings, nodes, sizes)


def _party_sizes(of: PartyDescription, job: JobSettings) -> PartySizes:
    """Return what a party brings to a job, for its costs; edges are pairs that the job uses, in a union job."""
    splits, edges, shared = of.splits or {}, sum(table.edges for table in of.edges), Counter[PartyId]()
    counts = splits.get("train", 0), len(of.classes or {}), splits.get("val", 0)
    if job.inputs.joins_others:
        edges, shared = _count_pairs(of, job)
    return PartySizes(of.num_features, edges, *counts, nodes=of.nodes, shared=shared)


def _count_pairs(of: PartyDescription, job: JobSettings) -> tuple[int, Counter[PartyId]]:
    """Count a holder's node pairs that a job uses, in the larger direction, and those shared with each other holder."""
    own, across, into, out, shared = of.party, job.inputs.across, 0, 0, Counter[PartyId]()
    used = {own, *(job.data.names if across in (None, own) else ())}
    for source, row in ((source, row) for table in of.edges for source, row in table.pairs.items()):
        for target, count in row.items():
            if {source, target} <= used:
                into += count * (own in (target, across))
                out += count * (own in (source, across))
                shared.update(dict.fromkeys({source, target} - {own}, count))
    return max(into, out), shared


def _show_preset(settings: JobSettings, choices: Sequence[Choice]) -> None:
    if not choices:
        echo(f"preset {settings.preset} chose nothing: keys left out have the defaults of docs/reference/settings.md")
    for choice in choices:
        echo(f"preset {settings.preset} chose {choice}, for {choice.why}")


def _check_parties_accept(settings: JobSettings, described: Sequence[PartyDescription], nodes: int | None) -> None:
    """Refuse what a party would refuse of a job with so many common ``nodes``, None where that is not known."""
    for (party, path), tables_of in zip((settings.data.parties or {}).items(), described, strict=True):
        own = Organisation.read(path, party)
        said = (
            acceptance.refusal_of(own, settings, nodes, named=True)
            or aligning.split_by_labels(settings, own.settings)
            or ("" if nodes is None else limits.delta_too_large(settings, nodes))
            or _own_delta_too_large(own.settings.limits, settings, tables_of)
        )
        if said:
            raise ConfigError(f"party {party!r} refuses the job: {said}")


def _own_delta_too_large(own: limits.LimitSettings, job: JobSettings, of: PartyDescription) -> str:
    """Why ``limits.max_delta`` protects none of a holder's units, by which it refuses every job that adds noise."""
    if own.max_epsilon is None or not adds_noise(job) or not of.nodes:
        return ""
    unit = own.epsilon_unit or "node"
    units = aggregation.rounded_pairs(of.pairs) if unit == "edge" else of.nodes
    return aggregation.delta_of_so_many(own.max_delta, unit, units, "limits.max_delta")


def _ask_sites(
    settings: JobSettings, net: Path, within: float | None, passphrase_file: Path | None
) -> tuple[checking.SiteCheck, ...]:
    kit = open_kit(net, passphrase_file)
    with messages().status("asking the sites"):
        found = checking.check_sites(kit, settings, within_s=checking.WITHIN_S if within is None else within)
    rows = ((site.site, site.state, site.says) for site in found)
    results().print(tables.table(None, ("site", "would", "why"), rows, fold=True))
    return found


# What a job will send


def _show_costs(costs: Costs, mbit: float, round_trip_ms: float) -> dict[str, object]:
    results().print(tables.costs_table(costs))
    for note in costs.notes:
        echo(note)
    seconds = costs.seconds(mbit * 1e6, round_trip_ms / 1000)
    echo(
        f"on the network about {seconds:,.1f} s, at {mbit:g} Mbit/s and round trips of {round_trip_ms:g} ms; "
        "computing comes on top"
    )
    return {**plain(costs), "rounds": costs.rounds, "sent": costs.sent(), "seconds": seconds}


def _refuse_costs(settings: JobSettings) -> Costs:
    """Refuse ``--costs``, which are not known, and name the options that would help, if any would; never returns."""
    if not paradigm_of(settings).session.has_costs or settings.data.parties or not settings.data.from_tables:
        raise ConfigError(
            f"paradigm={settings.paradigm!r}: what its jobs send depends on more than sizes, so no plan is made of "
            "them; a run's report says what it sent"
        )
    raise ConfigError(
        "the holders' tables are not here, so the number of common nodes is not known: give --nodes, --training, "
        "--classes, and --columns and --edges of every holder"
        if settings.is_aligned
        else "the holders' tables are not here: give --classes, and --columns of every holder"
    )


def _given_sizes(settings: JobSettings, given: Mapping[str, Any]) -> tuple[int, dict[PartyId, PartySizes]]:
    """Return the number of common nodes and each holder's sizes, from the options ``given``: option → value or None."""
    of_nodes = ("--nodes", "--training", "--validation", "--edges")
    if not settings.is_aligned and (name := next((each for each in of_nodes if given[each] is not None), None)):
        way = f"changes nothing in what a job of paradigm {settings.paradigm} sends; leave it out"
        raise typer.BadParameter(way, param_hint=name)
    for name in ("--nodes", "--training", "--classes") if settings.is_aligned else ("--classes",):
        if given[name] is None:
            raise typer.BadParameter("is missing; give all sizes, or none", param_hint=name)
    columns = _counts_of_all("--columns", given["--columns"], settings)
    if not settings.is_aligned:
        return 0, {holder: PartySizes(count, 0, classes=given["--classes"]) for holder, count in columns.items()}
    edges, label_holder = _counts_of_all("--edges", given["--edges"], settings), settings.data.label_party
    own = given["--training"], given["--classes"], given["--validation"] or 0
    return given["--nodes"], {
        holder: PartySizes(columns[holder], edges[holder], *(own if holder == label_holder else ()))
        for holder in settings.data.names
    }


def _counts_of_all(option: str, words: list[str] | None, settings: JobSettings) -> dict[PartyId, int]:
    names = settings.data.names
    found = counts_by_party(words, option, f"NAME=NUMBER with a holder of {', '.join(names)}", names)
    if missing := [name for name in names if name not in found]:
        raise typer.BadParameter(f"of {', '.join(missing)} as well: {_EACH}", param_hint=option)
    return found


# What its differential privacy costs


@command("budget", "veilgraph budget job.yaml --total 1,4,16", json=True)
def budget_command(
    job: Path | None = None,
    overrides: Overrides = None,
    total: str | None = None,
    nodes: Annotated[int | None, option(min=1)] = None,
    jobs: Annotated[int, option(min=1, max=100_000)] = 1,
    predictions: Annotated[int, option(min=0, max=10_000_000)] = 0,
    party: Path | None = None,
    ledger: Path | None = None,
) -> None:
    """Show what a job's differential privacy costs before it runs, and what noise a wanted total ε needs.

    Options:
        JOB.yaml (job): The job; no data are read, and nothing is sent. May be left out with --party or --ledger.
        --total 1,4,16: Show the noise that each of these total ε needs. Default: 1,2,4,8,16,32,64.
        --nodes N: Nodes common to all holders; δ follows from them where the job states none.
        --jobs N: Show the noise that a total ε needs for N such jobs, each of another snapshot.
        --predictions N: Show it for N more predictions with new nodes, besides those of each job.
        --party PARTY.yaml: Show what was ever released of this party's data, and what is left.
        --ledger FOLDER: As --party, for the ledger folder of a party that brings a graph.
    """
    if job is None and party is None and ledger is None:
        raise typer.BadParameter(
            "is missing; give a job, a party file with --party, a ledger's folder with --ledger, or two of them",
            param_hint="JOB.yaml",
        )
    if party is not None and ledger is not None:
        raise typer.BadParameter("--party says where its ledger is; give one of them", param_hint="--ledger")
    if job is None and (overrides or total is not None or nodes is not None or (jobs, predictions) != (1, 0)):
        raise typer.BadParameter(
            "is missing, and --set, --total, --nodes, --jobs and --predictions need a job; give one",
            param_hint="JOB.yaml",
        )
    totals = _parse_totals(_TOTALS if total is None else total)
    settings = None if job is None else read_settings(job, overrides)
    facts: dict[str, object] = {}
    # What is wrong with either is told before anything is shown.
    whose, own, nothing_yet = "", None, ""
    if party is not None:
        organisation = Organisation(party_settings.read_party_settings(party), party_settings.party_folder(party))
        whose = organisation.settings.party
        _check_in_job(settings, whose, f"--party {party}: party={whose!r} is not in the job, whose holders are")
        if (own := ledgers.ledger_at(organisation)) is None:
            nothing_yet = _nothing_released(organisation)
    elif ledger is not None:
        own = ledgers.ledger_in(ledger)
        whose = own.lines.header.party
        _check_in_job(settings, whose, f"--ledger: it is of {whose!r}, and the job's holders are", key="--ledger")
    if settings is not None:
        facts |= _show_budget(settings, totals, nodes, noise.Horizon(jobs, predictions), asked=total is not None)
    if whose:
        facts["lifetime"] = None if own is None else _show_ledger(own, settings, whose, nodes)
        if nothing_yet:
            echo(nothing_yet)
    echo("what these numbers mean: docs/explanation/privacy.md")
    emit(facts)


def _check_in_job(settings: JobSettings | None, party: PartyId, why: str, key: str | None = None) -> None:
    if settings is not None and party not in settings.data.names:
        raise ConfigError(f"{why} {', '.join(settings.data.names)}; give one of theirs", key=key, value=party)


def _nothing_released(organisation: Organisation) -> str:
    own = organisation.settings
    limit, folder = own.limits.max_epsilon, organisation.folder / own.ledger
    left = "limits.max_epsilon sets no bound" if limit is None else f"all of limits.max_epsilon={limit:g} is left"
    return f"{own.party}: nothing was ever released ({folder} has no ledger); {left}"


def _show_budget(
    settings: JobSettings, totals: list[float], nodes: int | None, horizon: noise.Horizon, *, asked: bool
) -> dict[str, object]:
    """Show what a job's differential privacy costs and what noise each total ε needs; return it as facts for JSON."""
    protection, paradigm = protection_of(settings, nodes), paradigm_of(settings)
    given = {"total": asked, "horizon": horizon != noise.Horizon(), "nodes": nodes is not None}
    refused, why = protection.not_asked
    if any(given[option] for option in refused):
        raise ConfigError(why)
    if settings.label_privacy is None and settings.training_plan is None and not paradigm.privacy.has_privacy:
        raise ConfigError(
            f"paradigm={settings.paradigm!r}: there is no ε to count, for {paradigm.guarantee.unbounded(settings)}",
            key="paradigm",
            value=settings.paradigm,
        )
    facts: dict[str, object] = {}
    if (features := protection.features) is not None:
        _print_with_notes(features.table(), features.notes())
        facts |= {"released": features.facts(), "release_notes": features.notes()}
    with messages().status("accounting"):
        planned, notes, more = protection.table(), protection.notes(), list[str]()
        needed, epsilons, shown = protection.noise(totals if asked else []), protection.own_epsilons(), None
        if needed:
            shown = noise.trained_noise_table(needed)
            epsilons |= {total: total for total in totals}
        elif not refused:
            wanted = noise.NeededNoise(settings, totals, nodes, horizon)
            needed, shown, epsilons, more = wanted.facts, wanted.table(), wanted.job_epsilons(), wanted.notes()
    _print_with_notes(planned, notes)
    _print_with_notes(shown, more)
    facts["holders"] = protection.facts() or None
    if settings.training_plan is not None or not refused:
        facts["noise"] = needed
    facts["notes"] = [*notes, *more]
    if settings.noise.feature_release is None or settings.privacy is not None:
        expected = noise.expected_table(settings, epsilons)
        unknown = expected is None and settings.privacy is not None and epsilons
        _print_with_notes(expected, [noise.not_measured(settings)] if unknown else [])
        facts["expected"] = noise.expected_facts(settings, epsilons)
    return facts


def _print_with_notes(shown: Table | None, notes: Sequence[str]) -> None:
    if shown is not None:
        results().print(shown)
    for note in notes:
        echo(note)


def _show_ledger(ledger: Lifetime, settings: JobSettings | None, party: str, nodes: int | None) -> dict[str, object]:
    """Show a party's lifetime ledger, and what the job would take of the rest; return facts for JSON."""
    results().print(ledgers.lifetime_table(ledger))
    facts = ledgers.lifetime_facts(ledger)
    if settings is not None:
        facts["after"] = ledgers.outlook_facts(ledger, settings, party, nodes)
        echo(ledgers.outlook_note(facts["after"], ledger))
    return facts


def _parse_totals(text: str) -> list[float]:
    totals = []
    for word in text.split(","):
        try:
            totals.append(float(word))
        except ValueError:
            totals.append(math.nan)
        if not 0 < totals[-1] < math.inf:
            raise typer.BadParameter(
                f"{word!r} is no total ε; give finite numbers above 0 as in 1,4,16", param_hint="--total"
            )
    return totals
