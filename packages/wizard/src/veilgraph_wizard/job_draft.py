"""A job file, with comments, for holders whose party files are there or whose names are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.aligning import split_by_labels
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.party_settings import PartySettings
from veilgraph_wizard.words import are_words

_HEAD: Final = """# Keys that are not here have their defaults: docs/reference/settings.md.
# Any may be replaced for once, as with --set train.epochs=100.
"""
_SHOWS: Final = (
    "the server sees sums of embeddings and gradients, which sealed jobs open to nobody; these reached about as much, "
    "or more, on the data sets of README.md"
)
_RANKED: Final = "what the best epoch has the best of on the validation nodes: of two classes, of which one may be rare"
_MARGINS: Final = "what the label holder learns of a node: a score, to rank by; classes: less, the class alone"
_OWN_MARGINS: Final = "what each holder learns of its own nodes: a score, to rank by; classes: less, the class alone"
_OPEN: Final = f"{_SHOWS}: choose it by veilgraph init --paradigm sealed"
_NUMBERS: Final = "what is learnt: the tables have numbers to predict"
_ALIKE: Final = "each holder its own columns, to mean 0 and variance 1"
_WORDS: Final = "many columns, few of them at a node, as words are: each row to sum 1"
_TOGETHER: Final = (
    "columns to mean 0 and variance 1 over all holders' rows, of which these tell them (column-statistics)"
)
_CLEAR: Final = (
    "the server sees every holder's embeddings of every node; secure-max: of each node the largest values alone, for "
    "more traffic (docs/explanation/horizontal.md)"
)
_APART: Final = "each brings its own party file: veilgraph net join KIT --party FILE"
_NOISED: Final = "what leaves has noise, and a holder's ledger counts it: veilgraph budget; docs/explanation/privacy.md"
_SYMBOLS: Final = "a label under randomised response, for each edge between two holders: docs/explanation/union.md"
_SLOTS: Final = "decide: the most edges that any holder can have, both directions counted; all seem to have as many"
_DEGREE: Final = "decide: the most edges that a node can have at all holders together; null: each tells its own"
_ACROSS: Final = "it has no nodes, and the edges between those of different holders: docs/explanation/union.md"
_DEALER: Final = "an outsider deals random numbers, and reads everything together with any holder"
_NOBODY: Final = "the two make random numbers together, at many times the cost: pip install 'veilgraph[nobody]' at both"
_MAJORITY: Final = "a holder deals random numbers, and reads everything together with any other; the server relays"
_HERE: Final = "party files, found from the folder in which veilgraph is called"


@dataclass(frozen=True)
class ProtectedJob:
    """What a job is to protect: ``unit`` is edge, label, node-edges, training-record or node.

    ``joined``: edges may end at others' nodes.
    """

    unit: str
    epsilon: float
    joined: bool = False

    def settings(self, paradigm: str) -> dict[str, Any]:
        """The part of a job that does so.

        Raises ``ConfigError``: such jobs do not protect that by noise of theirs.
        """
        found = PARADIGMS[paradigm]
        if self.unit not in found.privacy.protects:
            others = [
                f"{name}: {', '.join(PARADIGMS[name].privacy.protects)}"
                for name in PARADIGMS
                if PARADIGMS[name].privacy.protects
            ]
            raise ConfigError(
                f"--protect {self.unit}: no job of paradigm {paradigm} that init writes does; they are "
                f"{'; '.join(others)}; choose one",
                key="--protect",
                value=self.unit,
            )
        return found.privacy.protecting(self.unit, self.epsilon, joined=self.joined)


@dataclass(frozen=True)
class JobDraft:
    """The text of a job file, what is still to decide or mend, and what the job shows that a sealed one does not."""

    text: str
    decisions: tuple[str, ...]
    shows: str = ""


def always_protected(paradigm: str) -> str:
    """Return what every job of a paradigm protects by noise; empty where a job can do without, or it is unknown."""
    return PARADIGMS[paradigm].privacy.always if paradigm in PARADIGMS else ""


def draft_job(
    name: str,
    paradigm: str,
    parties: Mapping[Path, PartySettings] | Sequence[PartyId],
    label_holder: PartyId | None = None,
    select_by: str | None = None,
    protected: ProtectedJob | None = None,
    trust: str | None = None,
) -> JobDraft:
    """Write a job of few keys, so that the defaults serve.

    ``parties`` are party files and what they say, or the names of holders that are elsewhere. Without ``label_holder``
    it is the only one whose party file has a label; without ``select_by`` the best epoch has, of two classes, the best
    AUC, where the paradigm can. Without ``protected`` nothing has noise. ``trust`` is who deals, if anybody.

    Raises ``ConfigError``: an argument breaks a rule, or they make no job together.
    """
    here = dict(parties) if isinstance(parties, Mapping) else {}
    names = tuple(parties) if not isinstance(parties, Mapping) else _names(here)
    data: dict[str, Any] = {"holders": list(names)}
    if here:
        data = {"parties": {settings.party: str(path) for path, settings in here.items()}}
    content: dict[str, Any] = {"name": name, "paradigm": paradigm, "data": data}
    across = [each.party for each in here.values() if not each.has_nodes]
    if across:
        content["across"] = across[0]
    noised = {} if protected is None or paradigm not in PARADIGMS else protected.settings(paradigm)
    usual = parse_job({"paradigm": paradigm, **(noised if always_protected(paradigm) else {})})
    is_aligned = usual.is_aligned
    content |= _trust(trust, usual) | noised
    if is_aligned:
        data["label_holder"] = _label_holder(names, list(here.values()), label_holder)
    elif label_holder is not None:
        data["label_holder"] = _named(names, label_holder)
    elif (first := next((each.party for each in here.values() if each.nodes.label is not None), names[0])) != names[0]:
        data["label_holder"] = first
    comments = {
        **({"paradigm": _OPEN} if paradigm == "vertical" else {}),
        "across": _ACROSS,
        "parties": _HERE,
        "holders": _APART,
        "privacy": _NOISED,
        "release": _NOISED,
        "label_privacy": _NOISED,
        "symbols": _SYMBOLS,
        "edge_slots": _SLOTS,
        "max_degree": _DEGREE,
        "trust": {"dealer": _DEALER, "majority": _MAJORITY}.get(trust or "", _NOBODY),
    }
    _take(content, comments, "model.combine", "max", _CLEAR)
    if select_by is not None:
        content["train"] = {"select_by": select_by}
    elif any(label is not None and len(label.classes) == 2 for label in (each.nodes.label for each in here.values())):
        _take(content, comments, "train.select_by", "auc", _RANKED)
        _take(content, comments, "output", "margins", _MARGINS if is_aligned else _OWN_MARGINS)
    if any(settings.nodes.target is not None for settings in here.values()):
        _take(content, comments, f"{paradigm}.task", {"name": "values"}, _NUMBERS)
    features = [feature for settings in here.values() for feature in settings.nodes.features]
    if not always_protected(paradigm) and not any(getattr(each, "scale", None) is not None for each in features):
        _scale(content, comments, list(here.values()))
    edges = [each for settings in here.values() for each in settings.edges]
    if any(each.weight is not None or each.normalize is not None or each.decay is not None for each in edges):
        _take(content, comments, "model.edge_weights", True, "the tables' links have weights")
    if any(each.directed for each in edges):
        _take(content, comments, "model.directed", True, "some of the tables' links go one way")
    job = parse_job(content)
    decisions = (*_unlike(list(here.values())), *_refused(job, here))
    return JobDraft(_HEAD + _text(content, comments), decisions, _SHOWS if paradigm == "vertical" else "")


def _trust(trust: str | None, usual: JobSettings) -> dict[str, str]:
    """The part of a job that says who deals; ``ConfigError``: in jobs as the ``usual`` one nobody does."""
    if trust is None:
        return {}
    if "trust" not in type(usual).model_fields:
        raise ConfigError(
            f"--trust {trust}: a job of paradigm {usual.paradigm} has no such setting; choose --paradigm sealed or "
            "union, or leave it out",
            key="--trust",
            value=trust,
        )
    return {"trust": trust}


def _scale(content: dict[str, Any], comments: dict[str, str], here: Sequence[PartySettings]) -> None:
    """Say how columns are scaled. The one paradigm in which words need more than that is vertical."""
    job = parse_job(content)
    if job.paradigm == "vertical" and here:
        raw = parse_job({**content, "data": {**content["data"], "feature_scaling": "none"}})
        if are_words(raw, here):
            _take(content, comments, "data.feature_scaling", "row", _WORDS)
            return
    _take(content, comments, "data.feature_scaling", "standard", _ALIKE if job.is_aligned else _TOGETHER)


def _names(here: Mapping[Path, PartySettings]) -> tuple[PartyId, ...]:
    found: dict[PartyId, Path] = {}
    for path, settings in here.items():
        if settings.party in found:
            raise ConfigError(
                f"{path}: party={settings.party!r} is also the party of {found[settings.party]}; every organisation "
                "has a name of its own: rename one"
            )
        found[settings.party] = path
    return tuple(found)


def _label_holder(names: Sequence[PartyId], here: Sequence[PartySettings], given: PartyId | None) -> PartyId:
    labelled = [each.party for each in here if each.nodes.label is not None]
    if given is not None:
        _named(names, given)
        if here and given not in labelled:
            raise ConfigError(
                f"--label-holder {given}: its party file says nothing of a label (nodes.label); {_with_label(labelled)}"
            )
        return given
    if not here:
        raise ConfigError(f"--label-holder: is needed with names alone; give one of {', '.join(names)}")
    if len(labelled) != 1:
        raise ConfigError(f"--label-holder: cannot be told from the party files; {_with_label(labelled)}")
    return labelled[0]


def _with_label(labelled: Sequence[PartyId]) -> str:
    if labelled:
        return f"of these {', '.join(labelled)} have labels: name one"
    return "none has labels: write the label holder's with veilgraph data init --label COLUMN"


def _named(names: Sequence[PartyId], given: PartyId) -> PartyId:
    if given not in names:
        raise ConfigError(f"--label-holder {given}: is none of the holders; give one of {', '.join(names)}")
    return given


def _take(content: dict[str, Any], comments: dict[str, str], key: str, value: object, why: str) -> None:
    *group, name = key.split(".")
    tried = deepcopy(content)
    at = tried.setdefault(group[0], {}) if group else tried
    at[name] = value
    try:
        parse_job(tried)
    except ConfigError:
        return
    content.update(tried)
    comments[name] = why


def _unlike(parties: Sequence[PartySettings]) -> list[str]:
    """What to mend where holders write ids differently: they would have no node in common, and not be told why."""
    ways = {each.party: tuple(key for key, given in each.ids if given) or ("exact",) for each in parties}
    if len(set(ways.values())) <= 1:
        return []
    said = "; ".join(f"{party} {','.join(way)}" for party, way in ways.items())
    return [f"ids: holders write them differently ({said}); draft them with the same --ids"]


def _refused(job: JobSettings, here: Mapping[Path, PartySettings]) -> list[str]:
    holders = {path: Organisation.read(path, settings.party) for path, settings in here.items()}
    found = {
        path: refusal_of(holder, job, named=True) or split_by_labels(job, holder.settings)
        for path, holder in holders.items()
    }
    refused = [(path, said) for path, said in found.items() if said]
    return [f"{path} refuses such a job{_to_accept(job, said)}: {said}" for path, said in refused]


def _to_accept(job: JobSettings, refusal: str) -> str:
    """How to draft a party file that accepts a job, in parentheses; empty where no option of ``data init`` does."""
    names = [job.paradigm] if "limits.leakage" in refusal and not adds_noise(job) else []  # it is of default jobs
    names += ["majority"] if "limits.trust" in refusal else []
    options = " ".join(f"--accept {each}" for each in names)
    return f" (to accept it, draft the file again: veilgraph data init … {options} --replace)" if names else ""


def _text(content: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    written = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=2**20)
    lines = []
    for line in written.splitlines():
        why = comments.get(line.strip().partition(":")[0])
        lines.append(line if why is None else f"{line}  # {why}")
    return "\n".join(lines) + "\n"
