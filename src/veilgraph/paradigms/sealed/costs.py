"""What a sealed job costs: rounds, bytes and memory, counted without data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import NOBODY, SERVER, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.cut_and_choose import DIGEST_BYTES
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import AT_ONCE
from veilgraph.paradigms.sealed.networks.propagation import is_dense
from veilgraph.paradigms.sealed.plan import Context, is_apart
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram
from veilgraph.paradigms.sealed.programs import program_of
from veilgraph.protocol.costs import JUDGEMENT_BYTES, Costs, Stage

_ITEM = 8
_BASE: Final = 330 << 20  # of a holder's process with nothing to do, and of messages that wait
_DEALER_BASE: Final = 256 << 20
_PAIR_BASE: Final = 470 << 20  # beside a holder's, where nobody deals
_PAIR_NODE: Final = 16_500  # bytes for each node of a union in place of that: within a ninth of 10^4 to 10^5 accounts
_PAIR_UNION: Final = 104 << 20  # likewise, whatever its size
_ANSWERS: Final = 1 << 30  # of a hop, which are sent together
_HELD: Final = 28  # matrices of an opening that are in hand at once
_SLOT, _DEALER_SLOT = 82, 32  # bytes for each slot of hidden edges: permutations, keys, and rows that hop
_READ: Final = 4  # bytes of a number that a holder has read
_PICKED: Final = 2  # copies of rows as a dealer picks them
_SAVED: Final = 6  # copies of rows as a holder makes them, with what is in hand, or saves them
"""Fitted to block models of 10,000 to 300,000 nodes, all within a tenth (``benchmarks.sealed_scale``)."""
_MATRICES: Final = 1  # of a dense graph, as measured on ACM: 1.2 GB at most in any party
_STEPS, _EVALUATIONS = "steps", "evaluations"
CORE_S_A_GB: Final = (3, 30)
"""Seconds of a core for a GB that all parties together send: of the measured whole jobs the least and the most
(docs/reference/sealed-benchmarks.md)."""


def costs_of(
    context: Context,
    steps: int,
    evaluate_every: int | None = None,
    dealer_checks: float = 0.0,
    dealer: PartyId = SERVER,
) -> Costs:
    """Count rounds, bytes and memory of a training of ``steps`` with its final release and prediction, without data.

    A step is scored after every ``evaluate_every``. With ``dealer_checks``, the chance that a dealing is opened, the
    mean number of dealings is counted. ``dealer`` is the server or a holder.
    """
    sizes = context.sizes
    run = partial(_run, context=context, steps=steps, evaluate_every=evaluate_every)
    machine, counted = _counting(
        context, dealer, lambda machine: run(machine, predicting=range(len(context.plan.trials)))
    )
    kept, evaluations = run(machine, predicting=_costliest_trials(context, dealer))
    rounds, sent = Counter[str](), dict[str, Counter[PartyId]]()
    for place, cost in counted.costs.items():
        name = {"step": _STEPS, "score": _EVALUATIONS}.get(place.split(" ")[0], place or "seeds")
        rounds[name] += cost.rounds
        sent.setdefault(name, Counter()).update(cost.sent)
    if evaluations:  # the label holder then tells all other parties what came of each
        rounds[_EVALUATIONS] += evaluations
        # Where each judges, the server is told, and who has no rows.
        others = 1 + len(sizes.blocks) - len(sizes.owners) if sizes.blocks else len(sizes.columns)
        sent[_EVALUATIONS][context.label_party] += evaluations * others * JUDGEMENT_BYTES
    parties = (*sizes.columns, SERVER)
    stages = [Stage(name, rounds[name], {party: of[party] for party in parties}) for name, of in sent.items()]
    if dealer_checks:
        stages.insert(0, _dealer_checks(counted.dealt, 1 / (1 - dealer_checks)))
    costs = Costs(stages, _peak_memory(context, kept, counted.widest, dealer))
    if dealer_checks or context.plan.records is not None:  # of which no whole job was measured
        return costs
    return replace(costs, notes=[_computing(sum(costs.sent().values()))])


def _computing(sent_bytes: int) -> str:
    """Say what computing takes, by what measured jobs took for a byte."""
    least, most = (each * sent_bytes / 1e9 for each in CORE_S_A_GB)
    return (
        f"computing takes about {least:,.1f} to {most:,.1f} s of a core, all parties together, if as much for a GB "
        "that is sent as in measured jobs (docs/reference/sealed-benchmarks.md)"
    )


def _run(
    machine: Machine, context: Context, steps: int, evaluate_every: int | None, predicting: Sequence[int]
) -> tuple[tuple[int, int, int], int]:
    """Run a training on a machine without data, with its final release and prediction; return how often it is scored.

    ``Rows.kept_entries`` after the training is returned too. ``predicting``: the trials whose mean, or which alone, is
    released and predicts.
    """
    program = program_of(machine, context, lambda _: system_secrets)
    program.enter(trains=True)
    program.begin()
    evaluations, best = 0, program.shares()
    for step in range(steps):
        program.step(step, best)
        if evaluate_every and ((step + 1) % evaluate_every == 0 or step + 1 == steps):
            program.score(step + 1)
            evaluations, best = evaluations + 1, program.shares()
    kept = program.network.kept_entries if isinstance(program, SealedProgram) else (0, 0, 0)
    if context.plan.release or context.sizes.asked != 0:
        program.restore({TRIAL: torch.tensor(predicting)}, training=False)
    if context.plan.release:
        program.release()
    if context.sizes.asked != 0:
        program.predict()
    return kept, evaluations


def _counting(
    context: Context, dealer: PartyId, rehearse: Callable[[Machine], object] = lambda _: None
) -> tuple[Machine, CountingMachine]:
    """Make the machine that runs the program on shapes, and what it counts; ``rehearse`` runs it on another before."""
    holders = list(context.sizes.columns)
    if dealer == NOBODY:
        from veilgraph.mpc.sealed.pair_counting import PairCountingMachine  # noqa: PLC0415 - what it needs is an extra

        rehearse(first := PairCountingMachine(holders))
        machine = PairCountingMachine(holders, first.asked)
        return machine, machine.counted
    counted = CountingMachine(holders, dealer)
    return counted, counted


def _costliest_trials(context: Context, dealer: PartyId) -> list[int]:
    """All trials, whose mean may be taken; of words the one whose release and prediction send most bytes."""
    places, found = list(range(len(context.plan.trials))), list[int]()
    tried = [places] if context.plan.standard else [[place] for place in places]
    for members in tried if len(tried) > 1 else []:
        machine, counted = _counting(context, dealer)
        program = SealedProgram(machine, context)
        program.enter(trains=True)
        program.begin()
        counted.costs.clear()
        machine.at("")
        program.restore({TRIAL: torch.tensor(members)}, training=False)
        if context.plan.release:
            program.release()
        program.predict()
        found.append(sum(sum(cost.sent.values()) for cost in counted.costs.values()))
    return tried[found.index(max(found))] if found else places


def _dealer_checks(dealt: Mapping[PartyId, int], dealings: float) -> Stage:
    """Messages of dealer checks, for a mean number of ``dealings``, all but one opened; ``dealt``: messages to each."""
    others, digest = len(dealt) - 1, HEADER_BYTES + DIGEST_BYTES
    sent = dict.fromkeys(dealt, dealings * others * digest)
    sent[next(iter(dealt))] += dealings * len(dealt) * (HEADER_BYTES + 1)
    told = sum(digest + DIGEST_BYTES * messages for messages in dealt.values())
    sent[SERVER] = dealings * told + (dealings - 1) * len(dealt) * digest
    return Stage("dealer checks", round(2 * dealings), {party: round(count) for party, count in sent.items()})


def _peak_memory(context: Context, kept: tuple[int, int, int], widest: int, dealer: PartyId) -> Mapping[PartyId, int]:
    """Estimate peak memory in bytes of each holder and the server.

    ``kept``: ``Rows.kept_entries`` after a training; ``widest``: entries of the largest opening.
    """
    found = _dealt_memory(context, kept, widest)
    if dealer == NOBODY:
        more = _PAIR_BASE + _HELD * _ITEM * max(0, widest - AT_ONCE)  # where openings are not sliced
        if context.sizes.blocks:
            more = min(_PAIR_BASE + _ANSWERS, _PAIR_NODE * context.sizes.nodes + _PAIR_UNION)
        return {party: most + more for party, most in found.items()} | {SERVER: _DEALER_BASE}
    if dealer != SERVER:  # the server has no part in the program, and who deals has as many numbers as who computes
        found |= {dealer: max(found[dealer], found[SERVER]), SERVER: _DEALER_BASE}
    return found


def _dealt_memory(context: Context, kept: tuple[int, int, int], widest: int) -> dict[PartyId, int]:
    """Estimate peak memory in bytes where the server deals."""
    sizes, plan = context.sizes, context.plan
    if sizes.blocks:  # of 10^5 to 10^6 accounts, all within a fifth (docs/explanation/union.md)
        columns = context.width_of(context.abreast[0], *plan.home, *plan.blocks, *filter(is_apart, plan.blocks))
        over = {holder: (1 + plan.directed) * (sizes.nodes + edges) for holder, edges in sizes.edges.items()}
        found = {holder: 424_000_000 + 110 * sizes.nodes * columns + 140 * slots for holder, slots in over.items()}
        return found | {SERVER: 455_000_000 + 83 * sizes.nodes * columns + 12 * sum(over.values())}
    put_in = {holder: context.width_of(holder, *plan.home) for holder in sizes.columns}
    everything = sizes.nodes * sum(put_in[holder] for holder in context.abreast)
    columns, moved, rows = kept
    dense = [holder for holder in sizes.edges if is_dense(context, holder)]
    slots = sum(sizes.nodes + edges for holder, edges in sizes.edges.items() if holder not in dense)
    common = _ITEM * (_HELD * min(widest, AT_ONCE) + _MATRICES * sizes.nodes**2 * len(dense))
    in_turn = not columns and everything > AT_ONCE  # then columns are let go of as they hop
    dealt = max(everything, moved) if in_turn else everything + moved
    found = {
        SERVER: _DEALER_BASE + common + _ITEM * max(dealt, columns + moved + _PICKED * rows) + _DEALER_SLOT * slots
    }
    for holder, width in put_in.items():
        own = sizes.nodes * width
        hopped = everything + own + 4 * (moved or everything)  # or rows have hopped
        if in_turn:
            hopped = max(everything + own, 2 * moved)
        trained = columns + own * bool(columns) + 2 * moved + _SAVED * rows
        read = _READ * sizes.nodes * sizes.columns[holder]
        of_slots = _SLOT * slots
        most = max(_ITEM * hopped + of_slots, _ITEM * trained + of_slots * (not moved))  # edges go when columns hopped
        found[holder] = _BASE + common + read + most
    return found
