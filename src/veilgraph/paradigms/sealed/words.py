"""What reports say of a sealed job."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeVar

from veilgraph.core.text import counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.paradigms.sealed import trust
from veilgraph.paradigms.sealed.inputs import WIDE, plan_of, trials_of
from veilgraph.paradigms.sealed.plan import BOOSTING, NEIGHBOURS, OWN, QUANTILES, UNIT, Plan, hops_of, is_pooled
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.paradigm import Words


def _noise_words(job: SealedJob) -> str:
    others = listed([name for name in job.data.names if name != job.data.label_party])
    return (
        f"Of the edges of {others} nothing is used but one count of the classes of neighbours, to which "
        f"{trust.dealer_of_noise(job)} adds noise that no other holder knows. {job.data.label_party} learns the noisy "
        "counts of every node that is predicted, and predicts from both: ε bounds what these tell of one edge of "
        f"theirs. Columns, and the edges of {job.data.label_party}, have no noise."
    )


_BLOCKS: Final = {
    OWN: "holders' columns",
    NEIGHBOURS: "what each makes of them over its own edges",
    QUANTILES: "whether they are above their quantiles",
    UNIT: "these as rows of length 1",
    BOOSTING: "what boosted trees make of the label holder's",
}


def _record_words(job: SealedJob) -> str:
    others, learner = listed([name for name in job.data.names if name != job.data.label_party]), job.data.label_party
    made = (
        f"{learner} fits a model of its own at home. Of the columns of {others} one sum over its training nodes is "
        "made, to which each adds noise of its own: weights that nobody sees. "
    )
    if job.bits is not None:
        return (
            f"{made}Of every other node {learner} learns one bit from each of {others}: which of the two classes these "
            "weights take its columns for. Each of them turns its bits over at random, by coins that nobody else "
            f"knows: ε bounds what {learner} learns of one node's columns. Edges of {others} are not used."
        )
    return (
        f"{made}{learner} learns what these make of every node that it does not train on, and adds it to its own "
        "model: ε bounds what that tells of one training node's columns at one of "
        f"{others}. Columns of nodes that are not trained on have no noise. Edges of {others} are not used."
    )


def network_words(job: SealedJob, plan: Plan) -> str:
    """Describe in a few sentences, for a report, the network of a job, its rows, training steps and trials."""
    over = f"{job.data.label_party}'s own edges" if job.privacy is not None else "all holders' edges together"
    usual = replace(plan, trials=trials_of(job, 0))
    parts = [_BLOCKS[block] for block in usual.blocks if block in _BLOCKS]
    for pooled, where in ((True, over), (False, "every holder's edges by themselves")):
        hops = sorted({hops_of(block) for block in usual.blocks if hops_of(block) and is_pooled(block) == pooled})
        if hops:
            parts.append(f"columns after {listed([str(each) for each in hops])} hops over {where}")
    deep = any(trial.deep for trial in usual.trials)
    kind = f"A linear model beside a hidden layer of {plan.hidden}" if deep else "A linear model"
    choices, means = counted(len(usual.trials), "choice"), ", and means of them" * plan.standard
    more = len(plan.trials) - len(usual.trials)
    wide = f", {more} more on rows of length 1 where there are {WIDE} columns or more" * bool(more)
    tried = f" It tries {choices} of these and of rates{wide}{means}." if len(usual.trials) > 1 else ""
    steps = f"{counted(job.train.epochs, 'step')} of SGD with momentum"
    return f"{kind} is trained in {steps} on rows that are made once, of {listed(parts)}.{tried}"


S = TypeVar("S", bound=SealedJob)


class SealedWords(Words[S]):
    """Words in reports on jobs that open results only."""

    def collusion(self, job: S) -> str:
        return trust.collusion(job)

    def part_of(self, job: S, holder: PartyId) -> str:
        return super().part_of(job, holder) + trust.PART * (holder == job.dealing_party)

    def server_part(self, job: S) -> str:
        return "deals random numbers; has no data" if job.dealing_party == SERVER else "relays messages; has no data"


class SealedJobWords(SealedWords[SealedJob]):
    """Words in reports on sealed jobs of holders that have the same nodes."""

    def describe(self, job: SealedJob) -> list[str]:
        names = listed(job.data.names)
        if job.records is not None:
            return [
                f"{names} have other columns of the same nodes. All that they compute with is masked.",
                _record_words(job),
                f"{job.data.label_party} learns nothing else. {trust.dealing(job)}.",
                "All are told sizes: nodes, columns, training nodes, classes.",
            ]
        told = "the class" if job.output == "classes" else "a score of every class"
        nodes = "every node"
        if job.named_nodes is not None:
            nodes = (
                f"at most {counted(job.named_nodes, 'node')} in all, which it names in later predictions and nobody "
                "else learns"
            )
        but = ""
        if job.release == "holders":
            but = ", but that every holder learns the weights of its own columns in the first layer at the end"
        judges, named = job.passes.evaluates, job.outcome.predicts_named
        judged = ", and at every evaluation one number, which says how well the step does" if judges else ""
        counts = ", and noisy votes of its neighbours" * bool(job.privacy)
        dealer = trust.dealing(job)
        if job.dealer_checks:
            dealer += f"; a dealing with a wrong byte is found out with chance {job.dealer_checks:g} before it is used"
        plan = plan_of(job)
        noise = [] if job.privacy is None else [_noise_words(job)]
        return [
            f"{names} have other columns, and edges of their own, of the same nodes. All that they compute with is "
            f"masked: nobody sees another's features, edges, degrees, labels or training nodes, nor any weight, "
            f"gradient or score{but}.",
            network_words(job, plan),
            f"{job.data.label_party} learns {told} that is predicted for {nodes}{judged}{counts}. It learns nothing "
            f"else. {dealer}.",
            *noise,
            "All are told sizes: nodes, columns, rounded numbers of edges, training nodes, classes"
            + ", validation nodes that judge, and which step is best so far" * judges
            + ", and how many nodes are named" * named
            + ".",
        ]

    def verdict(self, job: SealedJob, what: str, nodes: str) -> str:
        if job.records is not None:
            beside = "noisy bits" if job.bits is not None else "weights"
            return (
                f"{job.data.label_party} predicts {what}, for {nodes}, by a model of its own and by {beside} of the "
                f"others' columns{' that nobody sees' * (job.bits is None)}."
            )
        return (
            f"{listed(job.data.names)} trained one model together that predicts {what}, for {nodes}; only "
            f"{job.data.label_party} sees the predictions, and nobody sees the model."
        )
