"""What a sealed job will send: its program run on shapes, which count every message to the byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.sealed.counter import CountingMachine
from veilgraph.mpc.sealed.cut_and_choose import DIGEST_BYTES
from veilgraph.paradigms.sealed.plan import Context, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.protocol.costs import Costs, Stage

_ITEM = 8
_BASE = 750 << 20
"""Of a process with nothing to do, and of what it keeps once freed."""
_COPIES, _HELD = 2, 19
"""Of all columns, and matrices of the widest opening or of a number for each slot, that are in hand at once. Measured:
within a sixth of block models from ten thousand to half a million nodes (docs/sealed-benchmarks.md)."""
_STEPS = "steps"


def costs_of(context: Context, steps: int, evaluate_every: int | None = None, dealer_checks: float = 0.0) -> Costs:
    """Of a training, and what is told at its end.

    Args:
        context: without data.
        steps: of the training.
        evaluate_every: steps between evaluations; None: there are none.
        dealer_checks: chance that a dealing is opened; of those the mean number is counted.
    """
    sizes = context.sizes
    machine = CountingMachine(list(sizes.columns), SERVER)
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    for step in range(steps):
        program.step(step)
        if evaluate_every and ((step + 1) % evaluate_every == 0 or step + 1 == steps):
            program.score(step + 1)
    if context.plan.release or sizes.asked != 0:
        program.restore({}, training=False)
    if context.plan.release:
        program.release()
    if sizes.asked != 0:
        program.predict()
    rounds, sent = Counter[str](), dict[str, Counter[PartyId]]()
    for place, cost in machine.costs.items():
        name = {"step": _STEPS, "score": "evaluations"}.get(place.split(" ")[0], place or "seeds")
        rounds[name] += cost.rounds
        sent.setdefault(name, Counter()).update(cost.sent)
    parties = (*sizes.columns, SERVER)
    stages = [Stage(name, rounds[name], {party: of[party] for party in parties}) for name, of in sent.items()]
    if dealer_checks:
        stages.insert(0, _checks(machine.dealt, 1 / (1 - dealer_checks)))
    return Costs(stages, _memory(sizes, machine.widest))


def _checks(dealt: Mapping[PartyId, int], dealings: float) -> Stage:
    """Of so many dealings, all but one of which are opened."""
    others, digest = len(dealt) - 1, HEADER_BYTES + DIGEST_BYTES
    sent = dict.fromkeys(dealt, dealings * others * digest)
    sent[next(iter(dealt))] += dealings * len(dealt) * (HEADER_BYTES + 1)
    told = sum(digest + DIGEST_BYTES * messages for messages in dealt.values())
    sent[SERVER] = dealings * told + (dealings - 1) * len(dealt) * digest
    return Stage("dealer checks", round(2 * dealings), {party: round(count) for party, count in sent.items()})


def _memory(sizes: Sizes, widest: int) -> Mapping[PartyId, int]:
    """Columns of all holders under masks, the masks that a party knows, and what is in hand at once."""
    everything = _COPIES * _ITEM * sizes.nodes * sum(sizes.columns.values())
    slots = max(sizes.nodes + edges for edges in sizes.edges.values())
    common = _BASE + everything + _HELD * _ITEM * (widest + slots)
    own = {holder: _COPIES * _ITEM * sizes.nodes * columns for holder, columns in sizes.columns.items()}
    return {holder: common + 2 * own[holder] for holder in own} | {SERVER: common}
