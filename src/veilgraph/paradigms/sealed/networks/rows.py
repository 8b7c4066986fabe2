"""The rows Z that sealed networks learn from, and what makes them: columns, hops, standardisation.

A row of Z is blocks side by side: 1, for the bias; holders' own columns; what each made of them at home, also over its
own edges; and columns after hops, over all holders' edges together or over each one's. Which of these are
learned from, and whether there is a hidden layer, is tried: a trial has weights of its blocks alone.

Linear propagation does not depend on weights, so no step has a hop in it. Rows are wanted at training and validation
nodes that nobody but the label holder may know. Where columns are fewer than training rows and what evaluations move,
all columns hop and the label holder picks its rows. Else a hidden one-hot column for each training node hops and is
multiplied with every holder's columns, and validation nodes are picked out of the logits of all nodes. Prediction
likewise propagates either what the first weights make of the columns, or the columns.

Columns are standardised inside, by means and deviations over the training rows, which nobody learns: hops leave columns
with very different spreads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import chain, takewhile
from math import prod
from operator import add
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from veilgraph.core.memory import give_back_freed_memory
from veilgraph.core.types import PartyId
from veilgraph.mpc.ring import column_products, matmul
from veilgraph.mpc.sealed.functions import BITS, BLOCK, ERROR_BITS, FINE_BITS, inverse_root, range_tests
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.wire import Summands, Wire, concatenate, joined, row_slices
from veilgraph.paradigms.sealed.learners import Learners
from veilgraph.paradigms.sealed.networks.propagation import HiddenEdges, Propagation, check_double_entry, one_hot
from veilgraph.paradigms.sealed.plan import MOST_OPENED, NEAR, UNIT, Context, Trial, hops_of, is_near, is_pooled

_WAYS: Final = ("in", "out")
_LARGEST_GAIN: Final = 4  # bits of it
_LEAST_VARIANCE: Final = 4.0**-_LARGEST_GAIN  # added to every variance
_VARIANCE_BITS: Final = 20
GAIN_BITS: Final = 20  # of what columns are multiplied by
_PRODUCT_BITS: Final = 42  # fractional bits of a product below 2^20 that is cut
_COARSE_BITS: Final = 12  # of rows that are squared, at least: squares of 2^6 of 2^17 rows fit the ring
_SQUARES_FIT: Final = 62  # bits of a sum of squares that is cut
_MOST_SHIFT: Final = 12  # of products of rows: with 36 fractional bits they stay below 2^62
_SQUARE_BITS: Final = 36  # of two such rows and their number together: squares of 2^13 fit


@dataclass(frozen=True)
class SavedWire:
    """An attribute whose wire is saved with the weights: owner, name, shape, bits; ``predicts``: to predict, too."""

    owner: object
    attribute: str
    shape: tuple[int, ...]
    bits: int
    predicts: bool = False

    @property
    def wire(self) -> Wire | None:
        """The attribute's value; None before it is computed."""
        found: Wire | None = getattr(self.owner, self.attribute)
        return found


class Rows:
    """One party's part in the rows of training and validation nodes, and in what they are made of.

    Attributes:
        tests: numbers that are below zero where what was opened is in its range, of wires not tested yet.
        columns: of every holder, [N, F_i], in the job's order.
        rows: of training and, where columns are propagated, of judged validation nodes: [T + V, all columns].
        mean, gain: of every column but the bias's, over the training rows: [1, all other columns].
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self.machine, self.context = machine, context
        self.tests: list[Wire] = []
        self.columns: list[Wire] = []
        self._homes: dict[tuple[PartyId, str], Wire] = {}
        self.rows: Wire | None = None
        self.mean: Wire | None = None
        self.gain: Wire | None = None
        self.edges = HiddenEdges(machine, context)
        self.relations = self._relations(tuple(context.sizes.edges))
        """Block of hops → what it goes over, by name."""
        self._spread: dict[str, list[Wire]] = {}

    def _relations(self, holders: Sequence[PartyId]) -> dict[str, dict[str, Propagation]]:
        """Block with hops → name → the propagations that it goes over: one, or one for each holder or direction."""
        machine, context = self.machine, self.context
        blocks = [block for block in context.plan.blocks if hops_of(block)]
        ways = (False, True) if context.sizes.blocks and context.plan.directed else (False,)
        self._pooled = pooled = Propagation(machine, context, self.edges, holders, ways)
        each = {holder: Propagation(machine, context, self.edges, [holder]) for holder in holders}
        if context.sizes.blocks:  # every holder has edges of the same kinds: what differs is their direction
            each = {_WAYS[way]: Propagation(machine, context, self.edges, holders, [way]) for way in ways}
        return {
            block: {block: pooled} if is_pooled(block) else {f"{block}.{name}": of for name, of in each.items()}
            for block in blocks
        }

    @property
    def _propagations(self) -> list[Propagation]:
        return list(dict.fromkeys(each for relations in self.relations.values() for each in relations.values()))

    def _moved_width(self, block: str) -> int:
        """Number of columns of a block at one relation, over all holders."""
        return sum(self.context.width_of(holder, block) for holder in self.context.abreast)

    @cached_property
    def _block_widths(self) -> dict[str, int]:
        """Block → its number of columns in a row, over all holders and relations."""
        return {
            block: sum(self.context.width_of(holder, block) for holder in self.context.abreast)
            * len(self.relations.get(block, (block,)))
            for block in (*self.context.plan.home, *self.relations)
        }

    def enter_columns(self) -> None:
        """Put in all holders' columns; once a session."""
        context, sizes = self.context, self.context.sizes

        def own(holder: PartyId, rows: int) -> Wire:
            shape = rows, context.width_of(holder, *context.plan.home)
            return self.machine.put(holder, context.columns_of(holder), shape, BITS)

        if sizes.blocks:
            self.columns = [concatenate([own(holder, block.size) for holder, block in sizes.owners.items()])]
        else:
            self.columns = self.machine.abreast([partial(own, holder, sizes.nodes) for holder in sizes.columns])

    def enter(self, *, trains: bool) -> None:
        """Put in all holders' edges; once a session. ``DataError`` where a union's double entry differs."""
        sizes = self.context.sizes
        for each in self._propagations:
            each.enter(transposed=trains)
        if len(sizes.blocks) > 1 and self.relations and len(sizes.owners) == len(sizes.blocks):
            into, out = (self.edges.of(list(sizes.blocks), [way]) for way in (False, self.context.plan.directed))
            check_double_entry(self.machine, self.context, into, out)
        give_back_freed_memory()

    def normalise(self) -> None:
        """Compute the degree factors of all propagations; once a session."""
        for each in self._propagations:
            each.normalise()

    def scale(self) -> None:
        """Compute the factors of all that hops, before parts of the program that run side by side need them."""
        for block, relations in self.relations.items():
            for relation in relations.values():
                relation.scale(self.context.plan.teleport(hops_of(block)))

    def prepare(self) -> None:
        """Make ``rows`` for a training, after ``normalise``, and standardise them."""
        self.normalise()
        give_back_freed_memory()
        self.machine.at("rows")
        rows = self._plain_rows()
        give_back_freed_memory()
        self.rows = self._standardised(rows)
        give_back_freed_memory()  # what is needed once, as large as all columns

    def kept(self) -> dict[str, SavedWire]:
        """Name → wire that is computed once and saved with the weights, in the order of restoring."""
        sizes, columns = self.context.sizes, sum(self._block_widths[block] for block in self.context.plan.blocks)
        found = {
            f"roots.{place}": SavedWire(each, "roots", (sizes.nodes, 1), FINE_BITS)
            for place, each in enumerate(self._propagations)
            if not (each.is_owned or sizes.blocks)  # which has other rows in every session
        }
        found["rows"] = SavedWire(self, "rows", (self._row_count, 1 + columns), BITS)
        found["weight.mean"] = SavedWire(self, "mean", (1, columns), BITS, predicts=True)
        found["weight.gain"] = SavedWire(self, "gain", (1, columns), GAIN_BITS, predicts=True)
        return found

    @property
    def kept_entries(self) -> tuple[int, int, int]:
        """Entries that are there all session long: of columns as put in, of columns after hops, and of rows."""
        wires = self.columns, chain(*self._spread.values()), [] if self.rows is None else [self.rows]
        columns, moved, rows = (sum(prod(wire.shape) for wire in each) for each in wires)
        return columns, moved, rows

    @property
    def propagates_columns(self) -> bool:
        """Whether all nodes' columns are propagated, and rows picked out of them; else one-hot columns of rows are.

        That is whichever moves fewer words of 32 bits over edges: columns with units of their own have two, and so has
        what evaluations move where rows are not picked.
        """
        sizes, plan = self.context.sizes, self.context.plan
        if not self.relations or sizes.blocks:
            return True
        judged = 0.0
        for trial in plan.trials:
            moved = (self._moved_once if self.judges_by_rows(trial) else self._moved_by_evaluations)(trial)
            judged += 2 * moved * len(self._hops_of(trial.blocks))
        made = self._hops_of(plan.blocks)
        columns = sum(self._moved_width(kind) * (1 if self._is_narrow(kind) else 2) for kind in made)
        return sizes.training * len(made) + judged >= columns

    def width_of(self, trial: Trial) -> int:
        """Outputs of a trial's first weights: C logits and its hidden units."""
        return self.context.sizes.classes + self.context.plan.hidden * trial.deep

    def row_width(self, trial: Trial) -> int:
        """Number of columns of a trial's rows: 1, for the bias, and those of its blocks."""
        return 1 + sum(self._block_widths[block] for block in trial.blocks)

    def sums_rows_of(self, trial: Trial) -> bool:
        """Whether a trial's steps change A [T, width] in place of the first weights, which are c·W_0 + Z_Tᵀ·A.

        That is where fewer numbers are opened, and products of two rows are sure to fit the ring.
        """
        plan, training = self.context.plan, self.context.sizes.training
        width, columns = self.width_of(trial), self.row_width(trial)
        if plan.rows_of_step(training) < training or self.row_shift(trial) > _MOST_SHIFT:
            return False
        steps = plan.steps / len(plan.trials)
        summed = training * (training + width + steps * width) + plan.kept_a_trial * columns * width
        return summed < steps * columns * width

    def row_shift(self, trial: Trial) -> int:
        """Least s for which products of two training rows of a trial are below 2^s times the bound of what is opened.

        Squares of a standardised column add up to T at most over these rows; in rows of length 1, to T·2^−8.
        """
        largest = self.context.sizes.training * self.row_width(trial)
        largest >>= 0 if self.context.plan.standard else 2 * _LARGEST_GAIN
        return max(0, largest.bit_length() + 1 - self.context.sizes.most_opened.bit_length())

    def judges_by_rows(self, trial: Trial) -> bool:
        """Whether validation rows are multiplied by U_0 and Z_Tᵀ once a trial: fewer columns than evaluations move."""
        return self.sums_rows_of(trial) and self._moved_once(trial) < self._moved_by_evaluations(trial)

    def _moved_once(self, trial: Trial) -> int:
        return self.context.sizes.training + self.context.plan.hidden * trial.deep

    def _moved_by_evaluations(self, trial: Trial) -> float:
        """Number of columns that first weights make of rows, in all evaluations of a trial."""
        return self.context.plan.kept_a_trial * self.width_of(trial) if self.context.sizes.validation else 0

    def _hops_of(self, blocks: Sequence[str]) -> list[str]:
        """One block of its kind for each hop that these blocks need, with near ones shared."""
        farthest: dict[str, str] = {}
        for block in filter(hops_of, blocks):
            kind = block.rpartition(".")[0]
            farthest[kind] = max(block, farthest.get(kind, block), key=hops_of)
        return [block for block in farthest.values() for _ in range(hops_of(block) * len(self.relations[block]))]

    def _is_narrow(self, block: str) -> bool:
        """Whether no entry that a block with hops moves is above 1."""
        return not self.context.plan.standard or block.startswith(UNIT)

    def _home(self, *blocks: str) -> list[Wire]:
        """Columns of the given blocks made at home, one wire for each holder that has some, and each block."""
        made = (self._home_of(holder, block) for holder in self.context.abreast for block in blocks)
        return [columns for columns in made if columns is not None]

    def _home_of(self, holder: PartyId, block: str) -> Wire | None:
        """A holder's columns of a block made at home, the same wire each time; None where it has none."""
        home, width = self.context.plan.home, self.context.width_of(holder, block)
        if width and (holder, block) not in self._homes:
            start = self.context.width_of(holder, *home[: home.index(block)])
            columns = self.columns[list(self.context.abreast).index(holder)]
            self._homes[holder, block] = columns[:, start : start + width]
        return self._homes.get((holder, block))

    def _moved_columns(self, block: str, name: str, relation: Propagation) -> list[Wire]:
        """All columns that ``block`` moves, after its hops over ``relation``, side by side; once a session."""
        if name not in self._spread:
            apart, hops, narrow = name.removeprefix(block), hops_of(block), self._is_narrow(block)
            nearer = {
                hops_of(near): concatenate(self._moved_columns(near, near + apart, relation), 1)
                for near in self._nearer(block)
            }
            columns = self._home(*self.context.plan.moved(block))
            if self._is_asked_last(name):
                self.columns = []
                self._homes.clear()
                teleport = self.context.plan.teleport(hops)
                self._spread[name] = relation.in_turn(columns, hops, teleport, nearer=nearer, narrow=narrow)
                if not narrow:
                    self.watch(*self._spread[name])
            else:
                self._spread[name] = [self.spread(relation, hops, *columns, nearer=nearer, narrow=narrow)]
        return self._spread[name]

    def _is_asked_last(self, name: str) -> bool:
        """Whether nothing asks for columns as they were put in once those of ``name`` have hopped."""
        asked = {each for block in self.context.plan.blocks for each in self.relations.get(block, (block,))}
        return asked - self._spread.keys() == {name}

    def _nearer(self, block: str) -> list[str]:
        """Blocks of fewer hops that this one goes on from: of one less, or where it is far, of 1, 2 and so on to 3."""
        kind, _, hops = block.rpartition(".")
        if is_near(block):
            return [near for near in [f"{kind}.{int(hops) - 1}"] if near in self.relations]
        return list(takewhile(self.relations.__contains__, (f"{kind}.{near}" for near in range(1, NEAR + 1))))

    def spread(
        self,
        relation: Propagation,
        hops: int,
        *columns: Wire,
        nearer: Mapping[int, Wire] = MappingProxyType({}),
        transposed: bool = False,
        narrow: bool = False,
    ) -> Wire:
        """Propagate columns B side by side: P^K·B, or with Pᵀ; tested unless ``narrow``, as in ``Propagation``."""
        found = relation(
            columns, hops, self.context.plan.teleport(hops), nearer=nearer, transposed=transposed, narrow=narrow
        )
        if not narrow:
            self.watch(found)
        return found

    @property
    def _row_count(self) -> int:
        sizes = self.context.sizes
        return sizes.training + (sizes.validation if self.propagates_columns else 0)

    def _plain_rows(self) -> Wire:
        """Make training and validation rows, not standardised: [T + V, 1 and the columns of all blocks]."""
        machine, sizes, context = self.machine, self.context.sizes, self.context
        owner, count = context.label_party, self._row_count
        if self.propagates_columns:
            parts = [part for block in context.plan.blocks for part in self._columns_of_all(block)]
            # All that hops has hopped: predictions, too, are made of what these hops left.
            self.edges.drop([holder for relation in self._propagations for holder in relation.holders])
            give_back_freed_memory()
            return joined(self._picked_rows(parts), count)
        rows = context.of(owner, "rows")
        columns = None if rows is None else one_hot(rows, sizes.nodes).T.contiguous()
        start = machine.put(owner, columns, (sizes.nodes, count), BITS)
        moved = dict[str, Wire]()

        def hopped(block: str, name: str, relation: Propagation) -> Wire:
            if name not in moved:
                apart, hops = name.removeprefix(block), hops_of(block)
                if relation.holders == (owner,):  # who knows all of it
                    moved[name] = relation.put(columns, hops, count)
                else:
                    nearer = {hops_of(near): hopped(near, near + apart, relation) for near in self._nearer(block)}
                    moved[name] = self.spread(relation, hops, start, nearer=nearer, transposed=True, narrow=True)
            return moved[name]

        def chained(relation: Propagation, blocks: Sequence[tuple[str, str]]) -> None:
            for block, name in blocks:
                hopped(block, name, relation)

        # Hops over different edges do not wait for one another.
        chains: dict[Propagation, list[tuple[str, str]]] = {}
        for block, relations in self.relations.items():
            for name, over in relations.items():
                chains.setdefault(over, []).append((block, name))
        machine.abreast([partial(chained, *each) for each in chains.items()])
        taken: list[tuple[Wire, PartyId, str]] = []
        for block in context.plan.blocks:
            for name, relation in self.relations.get(block, {block: None}).items():
                places = start if relation is None else hopped(block, name, relation)
                of = context.plan.moved(block) if relation else (block,)
                taken += [(places.T, holder, each) for holder in context.abreast for each in of]
        return concatenate([self._ones(count), *self._products_with_home(taken, count)], 1)

    def _ones(self, count: int) -> Wire:
        return self.machine.constant(torch.full((count, 1), 1 << BITS), BITS)

    def _picked_rows(self, columns: Sequence[Wire]) -> Iterator[Wire]:
        """Yield training, then validation rows of ``columns``, behind the bias's 1."""
        learners = Learners(self.machine, self.context)
        picks: list[tuple[str, Literal["training", "validation"]]] = [("rows", "training")]
        if self.context.sizes.validation:
            picks.append(("judged", "validation"))
        for what, of in picks:
            picked = learners.pick(what, of, *columns)
            for rows in row_slices(picked.shape):
                opened = self.opened(picked[rows])
                yield concatenate([self._ones(opened.shape[0]), opened], 1)

    def _products_with_home(self, taken: Sequence[tuple[Wire, PartyId, str]], count: int) -> list[Wire]:
        """Multiply ``count`` rows each with a holder's columns of a block: all that meet the same in one product."""
        found: dict[int, Wire] = {}
        groups: dict[tuple[PartyId | None, PartyId, str], list[int]] = {}
        for place, (rows, holder, block) in enumerate(taken):
            groups.setdefault((rows.owner, holder, block), []).append(place)
        for (_, holder, block), places in groups.items():
            columns = self._home_of(holder, block)
            if columns is not None:
                rows = concatenate([taken[place][0] for place in places])
                made = self.opened(self.machine.product(matmul, rows, columns))
                found |= {place: made[at * count : (at + 1) * count] for at, place in enumerate(places)}
        return [found[place] for place in sorted(found)]

    def _columns_of_all(self, block: str) -> list[Wire]:
        """A block's columns at all nodes, one wire for each relation of its hops or each holder: [N, ·]."""
        relations = self.relations.get(block)
        if relations is None:
            return self._home(block)
        return [wire for name, each in relations.items() for wire in self._moved_columns(block, name, each)]

    def _standardised(self, rows: Wire) -> Wire:
        """Standardise all columns but the bias's by their mean and deviation over the training rows, in place."""
        machine, training = self.machine, self.context.sizes.training
        columns = rows[:, 1:]
        self.mean = self._means(machine.split(columns[:training].sum(0)), training, BITS)
        # Of rows of length 1 hops make entries up to the root of the largest degree, and centred ones twice as large.
        largest = training * 4 * self.context.sizes.max_degree << 2 * BITS
        is_cut = self.context.plan.standard or largest.bit_length() > _SQUARES_FIT
        coarse_bits = max(_COARSE_BITS, (_SQUARE_BITS - training.bit_length()) // 2)
        squares = list[Summands]()
        for part in row_slices(columns[:training].shape):
            coarse = columns[:training][part] - self.mean
            if is_cut:
                coarse = machine.open(machine.split(coarse), BITS - coarse_bits)
            squares.append(machine.product(column_products, coarse, coarse))
        variance = self._means(reduce(add, squares), training, _VARIANCE_BITS)
        self.watch(variance)
        whole = variance.plus(_LEAST_VARIANCE).halved(-_VARIANCE_BITS)
        doublings = _VARIANCE_BITS // 2 - (0 if self.context.plan.standard else _LARGEST_GAIN)
        most, least = MOST_OPENED << _VARIANCE_BITS, round(_LEAST_VARIANCE * 2**_VARIANCE_BITS)
        root = inverse_root(machine, machine.split(whole[0]), most, GAIN_BITS + doublings, least)
        self.gain = root[None].halved(-doublings)
        for part in row_slices(columns.shape):
            columns.fill(part, self.opened(machine.product(torch.mul, columns[part] - self.mean, self.gain)))
        return rows

    def _means(self, sums: Summands, count: int, bits: int) -> Wire:
        """Divide ``sums`` [1, d] over ``count`` rows by it, and open that with ``bits`` fractional bits."""
        scale = count.bit_length() - 1
        total = sums.halved(scale)
        fewer = self.machine.open(total, max(0, total.bits - ERROR_BITS))
        share = self.machine.split(fewer).scaled(2.0**scale / count, FINE_BITS)
        return self.machine.open(share, share.bits - bits)

    def places(self, blocks: Sequence[str]) -> Tensor:
        """Positions, in a row of all blocks, of the bias and of the columns of these blocks: int64."""
        places, start = dict[str, Tensor](), 1
        for block in self.context.plan.blocks:
            places[block] = torch.arange(start, start + self._block_widths[block])
            start += self._block_widths[block]
        return torch.cat([torch.zeros(1, dtype=torch.int64), *(places[block] for block in blocks)])

    def linear(self, left: Wire, weight: Wire) -> Wire:
        """Multiply ``left`` by a weight matrix, and open the product, to be tested."""
        return self.opened(self.machine.product(matmul, left, weight))

    def opened(self, summands: Summands, bits: int = BITS) -> Wire:
        """Open summands with ``bits`` fractional bits, and note a test of their range.

        They are raised, where that leaves room, so that whole bytes are cut: the dealer then sends fewest of them.
        """
        spare = (bits - summands.bits) % 8
        if spare and summands.bits + spare <= _PRODUCT_BITS:
            summands = summands.scaled(1.0, spare)
        found = self.machine.open(summands, summands.bits - bits)
        self.watch(found)
        return found

    def watch(self, *wires: Wire) -> None:
        """Note a test of the range of wires side by side where that does not follow from earlier tests."""
        nodes = wires[0].shape[0]
        step = BLOCK if len(wires) > 1 else max(1, nodes)
        for start in range(0, max(1, nodes), step):
            rows = concatenate([wire[start : start + step] for wire in wires], 1)
            self.tests.append(range_tests(rows, self.context.sizes.most_opened))
