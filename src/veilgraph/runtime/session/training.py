"""The training loop of one party: epochs, model choice, checkpoints. All parties run it in lockstep.

The label holder alone judges: it scores the validation nodes and tells the others two bits, whether this epoch was the
best so far and whether to stop. With ``select_by: last`` it tells nothing.

Every forward pass publishes. Under differential privacy a pass costs budget, so none is made for an evaluation alone:
the logits of the training pass are scored, and training ends where the first party's budget ends.

A holder that averaging went on without gets the checkpoint that the others go on from (``transfer``). Its weights and
judgement are the same at all holders.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from statistics import fmean
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import BudgetSpent, ProtocolError, RunError
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import broadcast, receive_as
from veilgraph.protocol.agreement import Point, Start
from veilgraph.protocol.judge import Judge, Judgement
from veilgraph.protocol.role import Role, inference_batches, training_batches
from veilgraph.runtime.store.checkpoints import BEST, Checkpoints, is_final

_log = logging.getLogger("veilgraph")

_STATE: Final = "state/"
_OPTIMIZER: Final = "optimizer/"


def fit(
    role: Role,
    checkpoints: Checkpoints,
    held: Sequence[Point],
    *,
    begin: Callable[[int, int], None],
    log: Callable[[Record], None],
    done: Callable[[int, bool], None] = lambda epoch, kept: None,
) -> tuple[int, Judgement]:
    """Trains one party's part and leaves the best weights in the role, after a last inference with them.

    Returns the epoch that it resumed from and the judgement (with scores at the label holder). It resumes from the
    newest point ``held`` by all parties. ``begin`` gets its epoch, 0 for a fresh start, and the last one within reach;
    ``log`` each epoch's record; ``done`` its number, and whether it has a checkpoint.
    """
    settings, trace = role.session.settings.train, role.session.trace
    agreed = role.setup(held)
    start, last = agreed.epoch, last_epoch(role, agreed.epoch)
    transfer(role, checkpoints, agreed, lambda: _snapshot(role, role.model.weights()))
    checkpoints.begin(agreed)
    role.keep()
    begin(start, last)
    if not role.trains:
        return start, Judgement()
    model = role.model
    model.best, judgement, stop = (
        _load_checkpoint(role, checkpoints, agreed.point) if start else (_clone(model.weights()), Judgement(), False)
    )
    if settings.select_by == "last" and start == last:  # where the budget ends training, nothing may have been judged
        model.best, judgement = _clone(model.weights()), replace(judgement, best_epoch=last)
    step, paid, ended = 0, start, start
    for epoch in range(start + 1, last + 1):
        if stop:
            break
        if epoch > paid:
            # For the epochs up to the next checkpoint, from where a session that is cut off goes on.
            paid = min(last, math.ceil(epoch / settings.checkpoint_every) * settings.checkpoint_every)
            role.session.publisher.expect(paid - epoch + 1, step)
        step, record = _train_epoch(role, step, epoch)
        ended = epoch
        checkpoints.confirm(everybody=role.in_lockstep)
        if epoch % settings.evaluate_every == 0 or epoch == last:
            before = judgement.best_epoch
            with trace.span("evaluate", step=step):
                if not role.session.settings.passes.evaluates:
                    judgement = replace(judgement, best_epoch=epoch)
                else:
                    step = infer(role, step)
                    checkpoints.confirm(everybody=role.in_lockstep)
                    judgement, stop = judge_epoch(role, epoch, judgement, record)
            if judgement.best_epoch != before:
                model.best = _clone(model.weights())
        if isinstance(role, Judge):
            log(record)
        kept = epoch % settings.checkpoint_every == 0
        if kept:
            with trace.span("checkpoint", epoch=epoch):
                _keep_evidence(role)
                checkpoints.save(epoch, _snapshot(role, model.best), {"judgement": asdict(judgement), "stopped": stop})
        done(epoch, kept)
    model.load_weights(model.best)
    role.finish()
    role.infer_only()
    infer(role, step)
    _keep_evidence(role)
    checkpoints.finish(ended, _with_best_prefix(model.best), {"judgement": asdict(judgement), "stopped": True})
    return start, judgement


def _keep_evidence(role: Role) -> None:
    if role.session.witness is not None:
        role.session.witness.keep()


def last_epoch(role: Role, start: int) -> int:
    """The last epoch that the job, or a privacy budget, lets a training reach; ``BudgetSpent`` where it is none."""
    epochs = role.session.settings.train.epochs
    if role.affordable_steps is None or start + role.affordable_steps >= epochs:
        return epochs
    last = start + role.affordable_steps
    stated = f"the privacy budget of {', '.join(role.scarcest)} allows {role.affordable_steps} more training steps"
    if last == 0:
        raise BudgetSpent(
            f"{stated}, and there is no checkpoint that all parties hold; begin a new run, with a larger "
            "privacy.epsilon_total or more noise",
            code="no-checkpoint",
        )
    _log.info("%s: training ends after epoch %d of %d", stated, last, epochs)
    return last


def _load_checkpoint(role: Role, checkpoints: Checkpoints, point: Point) -> tuple[dict[str, Tensor], Judgement, bool]:
    """Load a checkpoint into the role; return its best weights, the judgement, and whether training had stopped."""
    path, tensors, facts = checkpoints.load(point)
    try:
        if is_final(facts):
            role.model.load_weights(best := _under_prefix(tensors, BEST))
            return best, Judgement(**facts["judgement"]), True
        return _restore(role, tensors), Judgement(**facts["judgement"]), bool(facts["stopped"])
    except RunError as error:
        raise RunError(f"{path}: {error}", code=error.code, party=error.party) from error
    except TypeError as error:
        raise RunError(
            f"{path}: its judgement is of another version ({error}); go on with the release that wrote it, or train "
            "anew"
        ) from error


def _train_epoch(role: Role, step: int, epoch: int) -> tuple[int, Record]:
    """Train an epoch from ``step`` on; return the next step and a record (step_seconds, at a judge loss)."""
    batches = training_batches(role.session.settings, role.nodes, epoch)
    started, losses = time.perf_counter(), []
    for batch in batches:
        role.batch = batch
        train_step(role, step, epoch)
        step += 1
        if isinstance(role, Judge) and role.loss is not None:
            losses.append(role.loss)
    record: Record = {"epoch": epoch, "step_seconds": (time.perf_counter() - started) / len(batches)}
    return step, record | ({"loss": fmean(losses)} if losses else {})


def train_step(role: Role, step: int, epoch: int) -> None:
    """One forward and backward pass and one update of this party's weights."""
    trace = role.session.trace
    role.model.zero_grad()
    with trace.span("forward", step=step):
        role.forward(step, epoch)
    with trace.span("backward", step=step):
        role.backward(step)
    with trace.span("update", step=step):
        role.model.update()


def infer(role: Role, step: int) -> int:
    """Forward passes over all common nodes, without dropout or gradients; returns the number of the next step."""
    with torch.no_grad():
        for batch in inference_batches(role.session.settings, role.nodes):
            role.batch = batch
            role.forward(step, None)
            step += 1
    return step


def judge_epoch(role: Role, epoch: int, judgement: Judgement, record: Record) -> tuple[Judgement, bool]:
    """Score an epoch into ``record`` and send two bits (improved, stop), or receive them; return judgement, stop."""
    session, settings = role.session, role.session.settings
    tag, label_party = Tag(Kind.CONTROL, epoch), settings.data.label_party
    if isinstance(role, Judge):
        scores = role.scores()
        record.update(scores.record())
        judgement = judgement.after(epoch, scores, settings.train.select_by)
        improved, stop = judgement.best_epoch == epoch, judgement.stops(settings.train)
        if settings.train.select_by == "last":
            return judgement, False
        broadcast(session.link, role.audience(), tag, torch.tensor([improved, stop]))
        return judgement, stop
    if settings.train.select_by == "last":
        return replace(judgement, best_epoch=epoch), False
    bits = receive_as(session.link, label_party, tag, (2,), torch.bool)
    return (replace(judgement, best_epoch=epoch) if bits[0] else judgement), bool(bits[1])


def _clone(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _snapshot(role: Role, best: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint: the model's state, the best weights, and the optimizer's moments."""
    state = {_STATE + name: tensor for name, tensor in role.model.state().items()}
    state.update(_with_best_prefix(best))
    if role.model.optimizer is not None:
        for index, values in role.model.optimizer.state_dict()["state"].items():
            state.update({f"{_OPTIMIZER}{index}/{key}": value for key, value in values.items()})
    return state


def _with_best_prefix(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {BEST + name: tensor for name, tensor in weights.items()}


def _restore(role: Role, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load weights and the optimizer's moments of a checkpoint into the role; return its best weights."""
    role.model.load_state(_under_prefix(state, _STATE))
    if role.model.optimizer is not None:
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _under_prefix(state, _OPTIMIZER).items():
            index, key = name.split("/")
            moments.setdefault(int(index), {})[key] = value
        groups = role.model.optimizer.state_dict()["param_groups"]
        role.model.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return _under_prefix(state, BEST)


def _under_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, by their names without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


_TENSORS: Final = Tag(Kind.AVERAGED, 0, 1)
_JUDGEMENT: Final = Tag(Kind.AVERAGED, 0, 2)


def transfer(role: Role, checkpoints: Checkpoints, start: Start, state: Callable[[], Mapping[str, Tensor]]) -> None:
    """Send the start's checkpoint from the first holder that has it to those behind; ``state`` has its shapes."""
    if not start.behind:
        return
    link, holders = role.session.link, role.session.holders
    giver = next(holder for holder in holders if holder not in start.behind)
    if link.party == giver:
        _, tensors, facts = checkpoints.load(start.point)
        numbers = [*astuple(Judgement(**facts["judgement"])), facts["stopped"], is_final(facts)]
        broadcast(link, start.behind, _JUDGEMENT, torch.tensor(numbers, dtype=torch.float64).view(torch.int64))
        content = torch.cat([tensors[name].double().reshape(-1) for name in sorted(tensors)])
        broadcast(link, start.behind, _TENSORS, content)
    elif link.party in start.behind:
        received = receive_as(link, giver, _JUDGEMENT, (6,), torch.int64)
        epoch, score, loss, since, stopped, final = received.view(torch.float64).tolist()
        epochs = range(role.session.settings.train.epochs + 1)
        if epoch not in epochs or since not in epochs or {stopped, final} - {0, 1}:
            raise ProtocolError(
                f"{giver}'s checkpoint has best epoch {epoch:g} and {since:g} evaluations since, of 0 to {epochs[-1]}, "
                f"and flags {stopped:g} and {final:g}, of 0 or 1; ask {giver} which release of veilgraph it runs",
                code="checkpoint",
                party=giver,
            )
        live = state()
        names = sorted(name for name in live if not final or name.startswith(BEST))
        sizes = [live[name].numel() for name in names]
        content = receive_as(link, giver, _TENSORS, (sum(sizes),), torch.float64)
        parts = zip(names, torch.split(content, sizes), strict=True)
        tensors = {name: part.view_as(live[name]).to(live[name].dtype) for name, part in parts}
        judgement = Judgement(int(epoch), score, loss, int(since))
        checkpoints.adopt(
            start.point, tensors, {"judgement": asdict(judgement), "stopped": bool(stopped)}, final=bool(final)
        )
        _log.info("%s goes on from the checkpoint of epoch %d that %s has", link.party, start.epoch, giver)
