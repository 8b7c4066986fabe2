"""What the audit must know of a vertical job: what messages hold, its noise, its initial W, and its trained twin."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import PUBLIC_SEEDS, LearningStreams, expand
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.party import PartyGraph, rows_between
from veilgraph.link.view import ViewEntry
from veilgraph.mpc import ring
from veilgraph.mpc.product import Direction, operand_mask_name, row_blocks, static_mask_name
from veilgraph.paradigms.vertical.network import SUM_BITS, init_std, init_weight
from veilgraph.paradigms.vertical.settings import VerticalJob, vertical
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.cut import GRADIENT_BITS
from veilgraph.protocol.evidence import (
    Audited,
    Evidence,
    Inferences,
    InitialWeights,
    OpenedSum,
    Source,
    embedding_of,
    embeddings,
    gradients,
    gradients_of,
)
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.view import Floats, Observations, View, aggregate, numbers, subtract_own

_MOST_UPDATES: Final = 10
_MOST_HOPS: Final = 80
_MOST_UNMASKED: Final = 50
_INITIAL: Final = "initial."


class VerticalSource(Source):
    """Audit a vertical job: sums and single embeddings, opened h0, gradients, and propagation over several rounds."""

    @override
    def evidence(self, view: View, trained: View) -> Iterator[Evidence]:
        if view.party == SERVER:
            yield from _server_evidence(trained)
        else:
            yield from (*_initial(trained), *_combined(trained))
            given = "" if view.party == view.settings.data.label_party else ", which it must be given"
            words = f"predictions of joint inferences with its own features changed{given}"
            yield Evidence("inference", words, view.others)
        yield from _gradients(trained)

    @override
    def joined(self, server: View | None, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
        """What parties have together: sums less their own summands and, with the dealer, what masks hide."""
        yield from _first_layer_less_own(holders, outside)
        if server is not None:
            yield from (*_sums_less_own(server, holders, outside), *_unmasked(server, holders[0], outside))

    @override
    def sums(self, view: View) -> Iterator[OpenedSum]:
        """Masked sums of embeddings and gradients at the server; with ``secure-sum`` those of h0 at holders."""
        job, trained = vertical(view.settings), view.of_training
        model, publishing = job.model, job.duties.publishing
        if view.party == SERVER and job.passes.is_masked:
            for round_ in range(1, model.rounds + 1):
                rows = aggregate(trained, Kind.MASKED, round_, publishing)
                yield OpenedSum(f"the sums of round {round_}", rows, model.combine.bits, publishing)
                rows = aggregate(trained, Kind.MASKED_GRADIENT, round_, publishing)
                yield OpenedSum(f"the sums of gradients of round {round_}", rows, GRADIENT_BITS, publishing)
        if view.party != SERVER and model.initial.method == "secure-sum":
            everybody = (view.party, *view.others)
            for kind, words in ((Kind.MASKED, "h0"), (Kind.MASKED_GRADIENT, "gradients of h0")):
                yield OpenedSum(f"the sums of {words}", aggregate(trained, kind, 0, everybody), SUM_BITS, everybody)

    @override
    def withstands(self, job: JobSettings, members: Collection[PartyId]) -> bool:
        return len(members) == 1 or not vertical(job).model.initial.is_joint

    @override
    def initial_weights(
        self, job: JobSettings, columns: Mapping[PartyId, int], seeds: Mapping[PartyId, int]
    ) -> InitialWeights:
        """The initial W as holders with ``seeds`` can compute it: exactly if seeds are public.

        Else it is their own part of a joint W or, of a W that is not joint, a guess that others use the job's seed.
        """
        model, names = vertical(job).model, job.data.names
        is_joint, is_public = model.initial.method == "collaborative", max(seeds.values()) < PUBLIC_SEEDS
        known = {**seeds} if is_joint and not is_public else {**dict.fromkeys(names, job.seed), **seeds}
        std = init_std(model.initial, sum(columns.values()), model.dim)

        def weights(owner: PartyId) -> Floats:
            def drawn(seed: int, drawer: PartyId, deviation: float) -> Floats:
                streams = LearningStreams(seed, drawer)
                return init_weight(streams, owner, columns[owner], model.dim, deviation).numpy()

            if not is_joint:
                return drawn(known[owner], owner, std)
            parts = [drawn(seed, drawer, std / len(columns) ** 0.5) for drawer, seed in known.items()]
            return np.asarray(np.sum(parts, axis=0))

        part = "the part of W that it drew itself" if is_joint else "a W of the job's seed, a guess"
        words = f"Seeds are private: with {part}."
        if is_public:
            words = "W is computed from the job's seed, which all holders learn from."
        return InitialWeights(words, is_public, len(known) < len(columns), weights)

    @override
    def inferences(self, run: Audited, members: Sequence[PartyId]) -> Inferences:
        network, model = self.twin(run), vertical(run.settings).model
        initial, weights = network.embedding.embed(), network.embedding.weights()

        def posteriors(h0: Mapping[PartyId, Tensor]) -> Floats:
            return np.asarray(network.infer_from(h0).double().softmax(dim=1).numpy())

        def doubled(node: int) -> Floats:
            changed = {party: rows.clone() for party, rows in initial.items()}
            for member in members:
                weight, own = weights[member].detach(), run.graph(member).features
                more = (rows_between(own, node, node + 1).to_dense().to(weight.dtype) @ weight)[0]
                for party in changed if model.initial.is_joint else [member]:
                    changed[party][node] += more.to(changed[party].dtype)
            return posteriors(changed)

        return Inferences(posteriors(initial), doubled, model.rounds * model.local.hops)

    @override
    def posteriors(self, job: JobSettings, everything: PartyGraph, epochs: int) -> Tensor:
        model = job.model if isinstance(job, VerticalJob) else VerticalJob(preset="paper").model
        initial = model.initial.model_copy(update={"method": "individual"})
        like = VerticalJob(model=model.model_copy(update={"initial": initial}), train=job.train, seed=job.seed)
        network = PlainNetwork(like, [everything], everything.party)
        for epoch in range(1, epochs + 1):
            network.train_step(epoch)
        return network.infer().double().softmax(dim=1)

    @override
    def unreadable(self, run: Audited) -> str:
        """Why views cannot be read: the product of a large graph is in several blocks of rows; else empty."""
        job = vertical(run.settings)
        if job.model.initial.method != "collaborative":
            return ""
        graphs = [run.whole_graph(name) for name in job.data.names]
        features = {graph.party: graph.num_features for graph in graphs}
        blocks = row_blocks(graphs[0].common, features, job.model.dim)
        if len(blocks) == 1:
            return ""
        return (
            f"has {graphs[0].common} common nodes, multiplied in {len(blocks)} blocks of rows, and the audit reads "
            f"those of one; audit a run on at most {blocks[0].stop} of the nodes"
        )

    @override
    def twin(self, run: Audited) -> PlainNetwork:
        job = run.settings
        if job.inputs.is_custom:
            raise DataError(
                "joint inferences are made anew with the package's own local models, and this job has another"
            )
        names = job.data.names
        network = PlainNetwork(job, [run.whole_graph(name) for name in names], job.data.label_party)
        parts = {party: run.model(party) for party in (*names, SERVER)}
        with torch.no_grad():
            for name, module in network.modules().items():
                party, part = name.split("/")
                prefix = f"{part}."
                module.load_state_dict(
                    {key.removeprefix(prefix): value for key, value in parts[party].items() if key.startswith(prefix)}
                )
            for owner, weight in network.embedding.weights().items():
                weight.copy_(_initial_weight(parts, owner))
            for owner, weight in network.embedding.own_weights().items():
                weight.copy_(parts[owner][f"{_INITIAL}own_weight"])
        return network


def _initial_weight(parts: Mapping[PartyId, Mapping[str, Tensor]], owner: PartyId) -> Tensor:
    """The trained W for ``owner``'s columns, [F_owner, d]: its own, or decoded from the sum of all parties' shares."""
    name, own = f"{_INITIAL}share/{owner}", parts[owner]
    shares = [part[name] for part in parts.values() if name in part]
    if not shares:
        return own[f"{_INITIAL}weight"]
    bits = int(own[f"{_INITIAL}weight_bits"])
    total = torch.stack(shares).sum(dim=0)
    return ring.decode(total, bits, torch.float64, "W", "train the run again", float(own[f"{_INITIAL}scale"]))


def _server_evidence(view: View) -> Iterator[Evidence]:
    """Embeddings that the server sees in every round, single or summed, and propagation between rounds."""
    job = vertical(view.settings)
    holders, is_masked = job.duties.publishing, job.passes.is_masked
    kind = Kind.MASKED if is_masked else Kind.EMBEDDING
    for round_ in range(1, job.model.rounds + 1):
        for holder in () if is_masked else holders:
            yield from embedding_of(view, kind, round_, f"{holder}'s embedding of round {round_}", [holder])
        if len(holders) > 1:
            what = "the sum of all embeddings" if is_masked else "all embeddings side by side"
            yield from embedding_of(view, kind, round_, f"{what} of round {round_}", holders)
    yield from _hops_at_server(view)


def _gradients(view: View) -> Iterator[Evidence]:
    """Gradients of the label holder's loss that the server, or a holder without labels, received."""
    job, labelled = vertical(view.settings), view.settings.data.label_party
    rounds = job.model.rounds
    told: list[tuple[Kind, int, str, Sequence[PartyId]]] = []
    if view.party == SERVER:
        kind = Kind.MASKED_GRADIENT if job.passes.is_masked else Kind.GRADIENT
        told.append((Kind.GRADIENT, 0, "gradients of the output z_L", [labelled]))
        for round_ in range(1, rounds):
            words = f"gradients of the combined embedding of round {round_}"
            told.append((kind, round_, words, job.duties.publishing))
    elif view.party != labelled:
        for round_ in view.rounds(Kind.GRADIENT, SERVER):
            words = f"gradients of its own embedding{f' of round {round_}' if rounds > 1 else ''}"
            told.append((Kind.GRADIENT, round_, words, [SERVER]))
        everybody = (view.party, *view.others)
        told.append((Kind.MASKED_GRADIENT, 0, "gradients of the initial embedding h0", everybody))
    for kind, round_, words, senders in told:
        yield from gradients_of(view, kind, round_, words, senders, (labelled,))


def _combined(view: View) -> Iterator[Evidence]:
    """Combined embeddings and output that a holder got from the server, and propagation between rounds."""
    model = vertical(view.settings).model
    for round_ in view.rounds(Kind.COMBINED, SERVER):
        is_last = round_ == model.rounds
        words = "the network's output z_L" if is_last else f"the combined embedding of round {round_}"
        yield from embedding_of(view, Kind.COMBINED, round_, words, [SERVER], about=view.others)
    last = model.rounds - (model.server.layers > 0)
    combined = {round_: aggregate(view, Kind.COMBINED, round_, [SERVER]) for round_ in range(1, last + 1)}
    yield from _hops(view, combined, combined, view.others, "inputs and outputs of the exchange rounds")


def _hops_at_server(view: View) -> Iterator[Evidence]:
    """Propagation at the server: what it sent back in a round, with what it got in the next."""
    job = vertical(view.settings)
    holders, rounds = job.duties.publishing, range(1, job.model.rounds + 1)
    sent = {
        round_: Observations([(seen,) for seen in view.sent(Kind.COMBINED, holders[0], round_)]) for round_ in rounds
    }
    if job.passes.is_masked:
        sums = {round_: aggregate(view, Kind.MASKED, round_, holders) for round_ in rounds}
        yield from _hops(view, sent, sums, holders, "what went into the exchange rounds and the sums that came out")
        return
    for holder in holders:
        own = {round_: aggregate(view, Kind.EMBEDDING, round_, [holder]) for round_ in rounds}
        yield from _hops(view, sent, own, [holder], f"what went into the exchange rounds and came out at {holder}")


def _hops(
    view: View,
    inputs: Mapping[int, Observations],
    outputs: Mapping[int, Observations],
    about: Sequence[PartyId],
    words: str,
) -> Iterator[Evidence]:
    """Yield as evidence the newest pairs of a round's input and the next round's output in the same pass.

    The last round's output, which an activation may follow, is used only where there is no other.
    """
    pairs = list[tuple[tuple[ViewEntry, ...], tuple[ViewEntry, ...]]]()
    for round_, given in inputs.items():
        if pairs and round_ + 1 == max(outputs):
            break
        made = {_pass_key(pieces): pieces for pieces in outputs.get(round_ + 1, Observations()).pieces}
        pairs += [(pieces, made[_pass_key(pieces)]) for pieces in given.pieces if _pass_key(pieces) in made]
    newest = sorted(pairs, key=lambda pair: _pass_key(pair[0]))[-_MOST_HOPS:]
    if newest:
        steps, made_of_them = (Observations([pair[side] for pair in newest]) for side in (0, 1))
        messages = (*steps.messages, *made_of_them.messages)
        yield Evidence("propagation", words, tuple(about), steps=steps, outputs=made_of_them, messages=messages)


def _pass_key(pieces: Sequence[ViewEntry]) -> tuple[int, int]:
    return pieces[0].session, pieces[0].tag.step


def _initial(view: View) -> Iterator[Evidence]:
    """At a holder: h^0 of every pass, which all holders open, and its own operands of W's updates."""
    method = vertical(view.settings).model.initial.method
    kind = {"collaborative": Kind.SHARE, "secure-sum": Kind.MASKED}.get(method)
    opened = Observations() if kind is None else aggregate(view, kind, 0, (view.party, *view.others))
    if opened:
        yield Evidence(
            "initial",
            f"the initial embeddings h0 of {len(opened)} passes, which all holders open",
            view.others,
            rows=opened[-1],
            steps=opened,
            updates=_own_updates(view, opened) if method == "collaborative" else (),
            messages=opened.messages,
        )


def _own_updates(view: View, opened: Observations) -> tuple[Floats, ...]:
    """A holder's operands in the products that changed W after the first passes: B = F + V, V from the dealer's seed.

    The list ends where a session ended, or a view was cut off.
    """
    seeds = {seen.session: seen for seen in view.received(Kind.SEED, SERVER)}
    sent = view.sent(Kind.MASKED_OPERAND, view.others[0], int(Direction.BACKWARD))
    operands = {(seen.session, seen.tag.step): seen for seen in sent}
    found = list[Floats]()
    for before, after in zip(opened.pieces[:_MOST_UPDATES], opened.pieces[1:], strict=False):
        session, step = before[0].session, before[0].tag.step
        operand = operands.get((session, step))
        if operand is None or (after[0].session, after[0].tag.step) != (session, step + 1):
            break
        mask_name = operand_mask_name(view.party, Direction.BACKWARD, step)
        mask = expand(seeds[session].tensor().numpy().tobytes(), mask_name, operand.shape)
        found.append((operand.tensor() + mask).double().numpy())
    return tuple(found)


def _sums_less_own(server: View, holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Sums that the server opens, less the summands of colluding ``holders``: if one is left, that holder's rows."""
    job = vertical(server.settings)
    publishing = [view for view in holders if view.party in job.duties.publishing]
    about = tuple(party for party in job.duties.publishing if party in outside)
    if not job.passes.is_masked or not publishing or not about:
        return
    whose = "of the others" if len(about) > 1 else f"of {about[0]}"
    for round_ in range(1, job.model.rounds + 1):
        left = subtract_own(aggregate(server, Kind.MASKED, round_, job.duties.publishing), publishing)
        yield from embeddings(server, [left], f"the embeddings {whose} in round {round_}, the rest taken off", about)
    labelled = job.data.label_party
    for round_ in range(1, job.model.rounds):
        left = subtract_own(aggregate(server, Kind.MASKED_GRADIENT, round_, job.duties.publishing), publishing)
        if labelled in outside:
            words = f"gradients {whose} of the combined embedding of round {round_}, the rest taken off,"
            yield from gradients(server, left, words, (labelled,))


def _first_layer_less_own(holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """With ``secure-sum``: h^0 less the colluding holders' own parts, their features times weights that they know."""
    first = holders[0]
    if vertical(first.settings).model.initial.method == "secure-sum":
        left = subtract_own(aggregate(first, Kind.MASKED, 0, first.settings.data.names), holders)
        yield from embeddings(first, [left], "the others' part of the initial embeddings h0", tuple(outside))


def _unmasked(server: View, friend: View, outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """With ``collaborative``: features and gradients of h^0 that ``friend`` got, less masks that the dealer knows."""
    if vertical(server.settings).model.initial.method != "collaborative":
        return
    names = server.settings.data.names
    seeds = {
        (holder, seen.session): seen.tensor().numpy().tobytes()
        for holder in names
        for seen in server.sent(Kind.SEED, holder)
    }

    def less_mask(seen: ViewEntry, name: str) -> Tensor:
        return seen.tensor() + expand(seeds[seen.sender, seen.session], name, seen.shape)

    for holder in outside:
        for seen in friend.received(Kind.STATIC_DIFFERENCE, holder)[-1:]:
            words = f"the features of {holder}, from the dealer's masks"
            rows = numbers(less_mask(seen, static_mask_name(seen.tag.round)))
            yield Evidence("embedding", words, (holder,), rows=rows, messages=(seen,))
    labelled, backward = server.settings.data.label_party, Direction.BACKWARD
    if labelled not in outside:
        return
    sent = aggregate(friend, Kind.MASKED_OPERAND, int(backward), names)
    parts = [
        [less_mask(piece, operand_mask_name(piece.sender, backward, piece.tag.step)) for piece in pieces]
        for pieces in sent.pieces[:_MOST_UNMASKED]
    ]
    if steps := tuple(numbers(torch.stack(some).sum(dim=0)) for some in parts):
        words = f"gradients of the initial embedding h0, from the dealer's masks, in {len(steps)} steps"
        yield Evidence("gradients", words, (labelled,), steps=steps, messages=sent.messages)


SOURCE: Final = VerticalSource()
