"""Answers for single nodes over HTTPS, at the label holder, from the newest joint inference of a run.

Nothing is computed here: the parties predict together, now and then, and this service looks up what they computed.
Where they kept shares of it (``online``), it has the run's session open the nodes that nobody has asked for yet.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from veilgraph.core.errors import ConfigError, RunError, VeilgraphError
from veilgraph.core.text import Event, Report
from veilgraph.core.validation import key_of, rule_of
from veilgraph.deploy.https import (
    HttpServer,
    Page,
    Route,
    check_token,
    json_page,
    make_token_file,
    problem,
    read_token,
    run_https,
    server_tls,
)
from veilgraph.deploy.metrics.door import Address, serve_metrics
from veilgraph.runtime.session.answering import ask_session
from veilgraph.runtime.store.predictions import Predictions, load_predictions, predicting_holder
from veilgraph.runtime.store.run_directory import PartyStore, RunDirectory

MAX_IDS: Final = 10_000
MAX_BODY_BYTES: Final = 1 << 20

Counted = Callable[[str, int, float], None]
"""Told of an exchange: path, status, seconds."""

_FILE: Final = "predictions.safetensors"
_DECIMALS: Final = 6


class PredictRequest(BaseModel):
    """What is asked: ids as text, or as whole numbers that stand for their text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ids: list[str]

    @field_validator("ids", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> list[str]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_IDS:
            given = f"{len(value)} ids" if isinstance(value, list) else "something else"
            raise ValueError(f"give a list of 1 to {MAX_IDS:,} ids, not {given}; ask for more in several requests")
        if any(isinstance(one, bool) or not isinstance(one, str | int) for one in value):
            raise ValueError("an id is a string or a whole number")
        return [str(one) for one in value]


@dataclass(frozen=True)
class Inference:
    """One joint inference, made at a time by the parties: predictions of C common nodes, and id → row.

    Where holders kept shares of it, ``opened`` is id → what was opened since it was read.
    """

    predictions: Predictions
    rows: Mapping[str, int]
    made_at: datetime
    opened: dict[str, dict[str, Any]] = field(default_factory=dict)

    def age_s(self) -> float:
        """Seconds since the parties computed it; 0 where the clock was set back."""
        return max(0.0, (datetime.now(UTC) - self.made_at).total_seconds())

    def facts(self) -> dict[str, Any]:
        """Which inference this is; nothing of the nodes."""
        return {
            "model_version": self.predictions.model_version,
            "made_at": self.predictions.made_at,
            "age_seconds": int(self.age_s()),
        }

    def closed(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row of the prediction, of those that holders have kept shares of and not opened."""
        askable, known = self.predictions.askable, (self.rows, self.opened)
        return {text: askable[text] for text in ids if text in askable and not any(text in each for each in known)}

    def answer(self, ids: Sequence[str]) -> dict[str, Any]:
        """Predictions in the order asked for, and the ids that are not among the common nodes."""
        known = [text for text in ids if text in self.rows]
        some = self.predictions.of([self.rows[text] for text in known])
        found = dict(zip(known, some.found(_DECIMALS), strict=True))
        found |= {text: self.opened[text] for text in ids if text in self.opened}
        answers = [{"id": text, **found[text]} for text in ids if text in found]
        return {**self.facts(), "predictions": answers, "unknown": [text for text in ids if text not in found]}


class NewestInference:
    """The newest joint inference of a run, read again when the parties have made another.

    Raises ``RunError``: there is no run, no part of the label holder, or no readable inference in it; ``ConfigError``:
    the run's nodes have no ids. ``report`` is given a line per new inference, never with ids or predictions.
    """

    def __init__(self, run: Path, report: Report) -> None:
        self._store = _label_holder_part(run)
        self._report = report
        self._seen = self._stamp()
        self._inference = _load_inference(self._store)
        self._one = Lock()
        self.damaged = False

    def get(self) -> Inference:
        """The newest that can be read; ``damaged`` tells whether there is a newer one that cannot. For any thread."""
        with self._one:
            self._renew()
            return self._inference

    async def open(self, inference: Inference, closed: Mapping[str, int]) -> None:
        """Have the run's session open nodes of an inference, ``closed``; raises as ``ask_session``."""
        predictions, nodes = inference.predictions, list(dict.fromkeys(closed.values()))
        chances = await ask_session(self._store.path, predictions.prepared, nodes)
        some = replace(predictions, nodes=torch.tensor(nodes), classes=chances.argmax(1), probabilities=chances)
        found = dict(zip(nodes, some.found(_DECIMALS), strict=True))
        inference.opened.update({text: found[node] for text, node in closed.items()})

    def _renew(self) -> None:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._inference = _load_inference(self._store)
                self.damaged = False
                words = f"now serving the joint inference of {self._inference.predictions.made_at}"
                self._report(Event("inference", words))
            except (RunError, ConfigError) as error:
                self.damaged = True
                kept = self._inference.predictions.made_at
                words = f"still serving the joint inference of {kept}, since the newest cannot be read: {error}"
                self._report(Event("inference-damaged", words, level="error"))

    def _stamp(self) -> tuple[int, ...] | None:
        """What changes when the file is replaced, changed or made readable; None while it is missing."""
        try:
            status = (self._store.path / _FILE).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def request_logger(report: Report, counted: Counted = lambda *_: None) -> Callable[[str, str, str, int, float], None]:
    """Return a callback that counts and reports each exchange at an ``HttpServer``, without the content."""

    def exchanged(client: str, method: str, path: str, status: int, took_s: float) -> None:
        counted(path, status, took_s)
        now, ms = datetime.now(UTC).isoformat(timespec="seconds"), round(1000 * took_s)
        words = f"{now} {client} {method} {path} {status} {ms} ms"
        report(Event("request", words, client=client, method=method, path=path, status=status, ms=ms))

    return exchanged


def create_routes(newest: NewestInference, token: str, max_age_s: float | None = None) -> dict[str, Route]:
    """Return the routes GET /health and POST /predict, which needs the token; their ``HttpServer`` must have TLS.

    ``max_age_s``: an older inference is not served; None: any is. Raises ``ConfigError``: an argument breaks a rule.
    """
    check_token(token)
    if max_age_s is not None and not 0 < max_age_s < math.inf:
        raise ConfigError(f"max_age_s={max_age_s!r}: must be above 0 seconds; leave it out to serve any age")
    token_digest = sha256(token.encode()).digest()

    def health(_body: bytes) -> Page:
        inference = newest.get()
        status = "too-old" if _too_old(inference, max_age_s) else "damaged" if newest.damaged else "ok"
        return json_page({"status": status, **inference.facts()}, 503 if status == "too-old" else 200)

    def predict(body: bytes) -> Page | Awaitable[Page]:
        try:
            ids = PredictRequest.model_validate_json(body).ids
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)[0]
            return problem(422, f"{key_of(found) or 'body'}: {rule_of(found)}")
        inference = newest.get()
        if max_age_s is not None and _too_old(inference, max_age_s):
            age, limit = _duration_words(inference.age_s()), _duration_words(max_age_s)
            words = f"the newest joint inference is {age} old, limit {limit}; let the parties predict anew"
            return problem(503, words)
        if closed := inference.closed(ids):
            return opened_page(inference, ids, closed)
        return json_page(inference.answer(ids))

    async def opened_page(inference: Inference, ids: Sequence[str], closed: Mapping[str, int]) -> Page:
        try:
            await newest.open(inference, closed)
        except VeilgraphError as error:
            return problem(409 if error.code == "used-up" else 503, str(error))
        return json_page(inference.answer(ids))

    def refuses(authorization: str) -> Page | None:
        """Compares digests: the time taken tells neither the token nor its length."""
        scheme, _, given = authorization.partition(" ")
        same = hmac.compare_digest(sha256(given.strip().encode("latin-1")).digest(), token_digest)
        if scheme.lower() == "bearer" and same:
            return None
        return json_page({"detail": "not authorised"}, 401, **{"WWW-Authenticate": "Bearer"})

    return {"/health": Route(health), "/predict": Route(predict, "POST", refuses, MAX_BODY_BYTES)}


def _too_old(inference: Inference, max_age_s: float | None) -> bool:
    return max_age_s is not None and inference.age_s() > max_age_s


def serve(
    run: Path,
    *,
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    token_file: Path,
    report: Report,
    max_age_s: float | None = None,
    metrics: Address | None = None,
) -> None:
    """Serves the run until SIGINT or SIGTERM; requests under way are then answered. Call it in the main thread.

    PEM files have the service's certificate and key; ``token_file``, readable by its owner only, what callers must
    show: it is made if it is not there, and all else is. ``metrics``: where to say how the service is, without TLS. The
    rest, and further errors, are as for ``NewestInference`` and ``create_routes``, with a line once it listens.

    Raises ``ModuleNotFoundError``: what metrics need is not installed; ``ConfigError``: a file or address cannot be
    used; ``DataError``: the certificate and the key are not of one pair.
    """
    if metrics is not None:
        import_module("prometheus_client")
    _label_holder_part(run)
    tls = server_tls(certificate, key)
    if not token_file.exists():
        make_token_file(token_file)
        words = f"made a token in {token_file}; give it to callers over a safe channel"
        report(Event("token", words))
    token = read_token(token_file)
    newest = NewestInference(run, report)
    routes = create_routes(newest, token, max_age_s)
    name = f"[{host}]" if ":" in host else host

    def listening(at: int) -> None:
        words = f"serving {run} at https://{name}:{at}; stop it with Ctrl-C"
        report(Event("listening", words, port=at))

    with _counting(newest, max_age_s, metrics, report) as counted:
        run_https(HttpServer(routes, tls, request_logger(report, counted)), host, port, listening)


@contextmanager
def _counting(
    newest: NewestInference, max_age_s: float | None, metrics: Address | None, report: Report
) -> Iterator[Counted]:
    """Serve metrics at ``metrics``, if given, while the block lasts; yield the callback that counts requests."""
    if metrics is None:
        yield lambda *_: None
        return
    from veilgraph.deploy.metrics.exposed import InferenceState, Requests, WatchedService, pages  # noqa: PLC0415

    def served() -> InferenceState:
        inference = newest.get()
        return InferenceState(inference.age_s(), newest.damaged, _too_old(inference, max_age_s))

    requests = Requests()
    with serve_metrics(metrics, lambda: pages(WatchedService(served, requests)), report):
        yield requests.count


def _label_holder_part(run: Path) -> PartyStore:
    """The label holder's part of a run, refused where it is not here or has no inference yet."""
    directory = RunDirectory.open(run)
    label_holder = predicting_holder(directory)
    path = directory.party_path(label_holder)
    if not path.is_dir():
        raise RunError(
            f"{run} has no part of the label holder {label_holder!r}; serve where {label_holder!r} keeps its"
        )
    if not (path / _FILE).is_file():
        raise RunError(f"{path} has no {_FILE}: the run is not complete; let the parties finish it with --resume")
    return PartyStore(path)


def _load_inference(store: PartyStore) -> Inference:
    """Read the predictions into memory; ``RunError``: they are damaged; ``ConfigError``: they have no ids."""
    path = store.path / _FILE
    try:
        predictions = load_predictions(store)
        made_at = datetime.fromisoformat(predictions.made_at)
        finite = bool(predictions.probabilities.isfinite().all())
    except (KeyError, IndexError, TypeError, ValueError) as error:  # a sound file that holds something else
        raise RunError(f"{path}: not a joint inference ({error!r}); let the parties predict anew") from error
    ids, classes = predictions.ids, len(predictions.class_labels())
    if ids is None:
        raise ConfigError(
            f"{path}: the run's nodes have no ids, since it was not trained from tables; serve one that was"
        )
    if made_at.tzinfo is None or not finite or predictions.probabilities.shape != (len(ids), classes):
        raise RunError(f"{path}: not a joint inference (ids, time or probabilities); let the parties predict anew")
    # what was read is mapped from the file; a copy of it outlives whatever is written over the file later
    copied = {name: values.clone() for name, values in predictions.columns.items()}
    predictions = replace(predictions, probabilities=predictions.probabilities.clone(), columns=copied, own=None)
    return Inference(predictions, predictions.rows(), made_at)


def _duration_words(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    return f"{seconds:.0f} seconds"
