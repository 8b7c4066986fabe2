"""What every paradigm promises: the same run however it is carried, and no message or revelation without its row."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from veilgraph.audit.attack import AuditContext
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.protocol.evidence import source_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS, parse_job
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.messages import revelation_causes, revelation_statements, rows_of
from veilgraph.protocol.paradigm import PARADIGMS, Paradigm, paradigm_of
from veilgraph.runtime.launch.jobs import RunOptions, TrainResult, predict, resume, train
from veilgraph.runtime.store.predictions import Predictions
from veilgraph.runtime.store.run_directory import Record, RunDirectory


class _CutOff(Exception):
    """The test's own: nothing may swallow it."""


class ParadigmConformance:
    """Inherit it and give a small job that trains in a second or two, with a checkpoint in every epoch.

    Attributes:
        job: as a job file has it, ``paradigm`` among it; at least 3 epochs.
        is_repeatable: whether two runs of it are the same; not where noise is drawn anew.
        processes: whether parties are also run in processes of their own, which takes seconds to begin; else they are
            joined by the sockets that processes have.
    """

    job: ClassVar[Mapping[str, Any]]
    is_repeatable: ClassVar[bool] = True
    processes: ClassVar[bool] = True
    tolerance: ClassVar[float] = 1e-4

    @property
    def settings(self) -> JobSettings:
        """The job, validated."""
        return parse_job(dict(self.job))

    @property
    def paradigm(self) -> Paradigm[Any]:
        """The one under test."""
        return paradigm_of(self.settings)

    @property
    def parties(self) -> tuple[PartyId, ...]:
        """All of them, the server last."""
        return (*self.settings.data.names, SERVER)

    def twin(self, run: RunDirectory) -> Tensor | None:
        """What the trained model predicts in one process with everybody's data, [N, C]; None: it has no twin."""
        infer: Callable[[], Tensor] = source_of(run.settings).twin(AuditContext(run, seed=0, shadows=2)).infer
        return infer().softmax(dim=1)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
        """A run over memory."""
        return train(parse_job(dict(cls.job)), tmp_path_factory.mktemp("paradigm") / "run")

    def test_it_is_found_by_its_name_and_says_what_it_does(self) -> None:
        settings, paradigm = self.settings, self.paradigm
        assert PARADIGMS[settings.paradigm] is paradigm
        assert type(settings) is JOBS[settings.paradigm]
        again = parse_job(json.loads(settings.model_dump_json()))
        assert (again, again.hash()) == (settings, settings.hash())
        sentences = paradigm.words.describe(settings)
        assert sentences
        assert all(sentence.strip() == sentence and sentence.endswith(".") for sentence in sentences)
        assert paradigm.title
        assert paradigm.words.server_part(settings)
        assert all(paradigm.words.part_of(settings, holder) for holder in settings.data.names)
        assert paradigm.words.verdict(settings, "the class", "1 node").endswith(".")

    def test_memory_and_another_wire_give_the_same(self, trained: TrainResult, tmp_path: Path) -> None:
        wire = RunOptions(processes=True) if self.processes else RunOptions(link="sockets")
        other = train(self.settings, tmp_path / "other", options=wire)
        assert other.summary["sent_bytes"] == trained.summary["sent_bytes"]
        if self.is_repeatable:
            assert self._lasting(other) == self._lasting(trained)
            assert torch.equal(_predicted(other.predictions), _predicted(trained.predictions))

    def test_what_one_sends_another_gets_and_every_message_has_a_row(self, trained: TrainResult) -> None:
        settings = self.settings
        sent, received = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
        for row in self._traffic(trained.path):
            ends = (row["party"], row["peer"]) if row["direction"] == "sent" else (row["peer"], row["party"])
            (sent if row["direction"] == "sent" else received)[*ends, row["kind"]] += row["messages"]
        assert sent
        assert sent == received
        for sender, receiver, name in sent:
            kinds = [row.kind for row in rows_of(settings, sender, receiver)]
            assert Kind[name.upper()] in kinds, f"{sender} sends {receiver} {name}, of which no row tells"

    def test_what_a_run_discloses_is_what_its_job_reveals(self, trained: TrainResult) -> None:
        settings, said = self.settings, set[str]()
        for party in self.parties:
            for line in self._lines(trained.path / "parties" / party / "disclosures.jsonl"):
                rows = rows_of(settings, line["party"], line["to"])
                told = {each.name for row in rows if row.kind.name.lower() == line["kind"] for each in row.reveals}
                assert set(line["reveals"]) <= told
                said |= set(line["reveals"])
        assert said == set(revelation_causes(settings))
        assert said <= set(revelation_statements(settings))

    def test_a_party_refuses_what_it_does_not_accept(self) -> None:
        settings = self.settings
        for holder in settings.data.names:
            revealed, rounds = (
                tuple(revelation_causes(settings, holder)),
                1 if settings.passes.exchanges is None else settings.passes.exchanges[1],
            )
            accepted = LimitSettings(leakage=revealed, max_rounds=rounds)
            assert refusal(accepted, settings, holder) is None
            if rounds > 1:
                assert refusal(accepted.model_copy(update={"max_rounds": rounds - 1}), settings, holder) is not None
            for name in revealed:
                rest = tuple(each for each in revealed if each != name)
                refused = refusal(accepted.model_copy(update={"leakage": rest}), settings, holder)
                assert refused is not None
                assert name in refused

    def test_no_holder_spends_more_than_is_planned(self, trained: TrainResult) -> None:
        settings, paradigm = self.settings, self.paradigm
        nodes = int(trained.summary["nodes"])
        for holder in settings.data.names:
            largest = paradigm.privacy.largest_epsilon(settings, holder, nodes)
            assert largest >= 0
            if math.isinf(largest):
                assert paradigm.guarantee.unbounded(settings)
            ledger = trained.path / "parties" / holder / "ledger.json"
            if ledger.is_file():
                spent = json.loads(ledger.read_text(encoding="utf-8"))["epsilon_total"]
                assert (math.inf if spent is None else spent) <= largest * (1 + 1e-9)

    def test_the_twin_agrees(self, trained: TrainResult) -> None:
        expected = self.twin(RunDirectory.open(trained.path))
        if expected is not None:
            found = _predicted(trained.predictions)
            torch.testing.assert_close(found, expected.double(), rtol=0, atol=self.tolerance)

    def test_predictions_can_be_made_again(self, trained: TrainResult) -> None:
        again = predict(trained.path)
        assert _predicted(again).shape == _predicted(trained.predictions).shape
        if self.is_repeatable:
            assert torch.equal(_predicted(again), _predicted(trained.predictions))

    def test_a_run_that_was_cut_off_goes_on_to_the_same_end(
        self, trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = RunDirectory.append_metrics

        def append_and_die(run: RunDirectory, record: Record) -> None:
            append(run, record)
            if record["epoch"] == 2:
                raise _CutOff

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "append_metrics", append_and_die)
            with pytest.raises(_CutOff):
                train(self.settings, tmp_path / "cut")
        resumed = resume(tmp_path / "cut")
        assert [each["epoch"] for each in resumed.metrics] == [each["epoch"] for each in trained.metrics]
        assert resumed.summary["started_at"] > 0, "it began again"
        if self.is_repeatable:
            assert self._lasting(resumed) == self._lasting(trained)
            assert torch.equal(_predicted(resumed.predictions), _predicted(trained.predictions))

    @staticmethod
    def _lasting(result: TrainResult) -> list[Record]:
        return [{key: value for key, value in each.items() if "second" not in key} for each in result.metrics]

    def _traffic(self, run: Path) -> Iterator[Record]:
        for party in self.parties:
            yield from json.loads((run / "parties" / party / "traffic.json").read_text(encoding="utf-8"))

    @staticmethod
    def _lines(path: Path) -> list[Record]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _predicted(predictions: Predictions) -> Tensor:
    """Probabilities as the network gives them, and beside them all other columns: [N, C]."""
    columns = [column.double().reshape(-1, 1) for column in predictions.columns.values()]
    return torch.cat([predictions.uncalibrated.double(), *columns], dim=1)
