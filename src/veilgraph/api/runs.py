"""A run: what is asked of a training that has been, or has begun, and what a notebook shows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veilgraph.core.arguments import check_functions, check_mapping, check_several, check_whole, path_of, wrong_type
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.tensor_file import Record
from veilgraph.core.text import human_bytes, listed
from veilgraph.core.types import PartyId
from veilgraph.nn import CustomModel
from veilgraph.protocol.job import AttackLimit, JobSettings
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import Progress
from veilgraph.runtime.store.predictions import Predictions
from veilgraph.runtime.store.results import Comparison, compare
from veilgraph.runtime.store.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

with deferred():  # a training needs none of it
    from veilgraph.audit.audit import AuditPlan, audit
    from veilgraph.audit.finding import AuditResult
    from veilgraph.report.explanation import Explanation, explain
    from veilgraph.report.page import write_page
    from veilgraph.report.protection import labels_suffix
    from veilgraph.report.training import curves

ONE_MACHINE: Final[Mapping[PartyId, int]] = {}


def data_frame(of: str, rows: Mapping[Any, Mapping[str, Any]], index: str, instead: str) -> pd.DataFrame:
    """A table with a row for each entry: its place in the index → column → value.

    Raises ``ConfigError`` where pandas is not installed; ``instead`` has the same as ``of`` without it.
    """
    try:
        import pandas as pd  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{of}: pandas is not installed; install it (pip install pandas), or take {instead}", key=of
        ) from error
    return pd.DataFrame(list(rows.values()), index=pd.Index(list(rows), name=index))


def run_facts(run: RunDirectory) -> dict[str, str]:
    """Heading → text: a run's job, holders and state or, if complete, best epoch, test figures and bytes sent."""
    job, summary = run.settings, run.summary
    found = {"run": str(run.path), "job": f"{job.name} ({job.paradigm})", "holders": listed(job.data.names)}
    if summary is None:
        return {**found, "state": f"not complete: {len(run.metrics())} epochs of at most {job.train.epochs}"}
    figures = {
        f"test {figure.title}": f"{figure.shown(value)}{labels_suffix(job)}"
        for figure in job.measures.figures
        if (value := summary.get(f"test_{figure.name}")) is not None
    }
    sent = {f"sent by {party}": human_bytes(count) for party, count in summary["sent_bytes"].items()}
    return {**found, "best epoch": str(summary["best_epoch"]), **figures, **sent}


def html_table(rows: Mapping[str, str], caption: str) -> str:
    """A small table of HTML, everything in it escaped."""
    lines = "".join(
        f'<tr><th style="text-align: left">{escape(name)}</th><td style="text-align: left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(caption)}</caption><tbody>{lines}</tbody></table>"


class Run:
    """A run on disk: all of it is in its directory, and ``load_run`` finds it again.

    Args:
        path: of its directory.
        custom: for ``model.local.model: custom``, makes the user's local model for a width, as in ``fit``.

    Raises:
        RunError: there is no run at ``path``, or others than its owner may use it.
    """

    def __init__(self, path: str | Path, *, custom: CustomModel | None = None) -> None:
        check_functions(custom=custom)
        self._directory = RunDirectory.open(path_of("path", path, "a run"))
        self._custom = custom
        self._compared: Comparison | None = None

    def __repr__(self) -> str:
        summary = self._directory.summary
        main = self.job.measures.main
        value = None if summary is None else summary.get(f"test_{main.name}")
        state = "not complete" if summary is None else "complete"
        if value is not None:
            state = f"test {main.title} {value:.3f}"
        return f"Run({str(self.path)!r}): {self.job.name}, {state}"

    def _repr_html_(self) -> str:
        return html_table(run_facts(self._directory), "veilgraph run")

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self._directory.path

    @property
    def job(self) -> JobSettings:
        """The job as run, every default spelled out."""
        return self._directory.settings

    @property
    def metrics(self) -> Record:
        """Best epoch, accuracy, AUC and macro F1 in [0, 1] or the other figures of ``job.measures``, and what it took.

        That is seconds per step, and the bytes that each party sent.

        Raises:
            RunError: the run is not complete.
        """
        summary = self._directory.summary
        if summary is None:
            raise RunError(f"{self.path} is not a complete run; finish it with: run.resume()")
        return summary

    @property
    def epochs(self) -> list[Record]:
        """One record per epoch: loss, scores where it was evaluated, seconds."""
        return self._directory.metrics()

    @property
    def history(self) -> pd.DataFrame:
        """``epochs`` as a table, indexed by epoch; needs pandas.

        Raises:
            ConfigError: pandas is not installed.
        """
        records = self.epochs
        rows = {each["epoch"]: {key: value for key, value in each.items() if key != "epoch"} for each in records}
        return data_frame("history", rows, "epoch", "run.epochs")

    @property
    def comparison(self) -> pd.DataFrame:
        """``compare()`` as a table: a row for each holder alone, ``federated`` and ``pooled``; needs pandas.

        Columns are the figures of each split and the best epoch. It trains once; of the same ``Run`` it is there then.

        Raises:
            ConfigError: pandas is not installed, or as ``compare``.
            RunError: as ``compare``.
        """
        data_frame("comparison", {}, "training", "run.compare()")  # before it trains
        compared = self.compare() if self._compared is None else self._compared
        rows = {name: {key: each.get(key) for key in compared.pooled} for name, each in compared.summaries().items()}
        return data_frame("comparison", rows, "training", "run.compare()")

    def plot(self, compared: Comparison | None = None) -> Figure:
        """Loss and the job's first figure over epochs, as ``curves.png`` has them; of an incomplete run, so far.

        Args:
            compared: what ``compare`` gave, drawn as horizontal lines.

        Returns:
            A picture of matplotlib's, with ``savefig``; a notebook shows it.
        """
        if not isinstance(compared, Comparison | None):
            raise wrong_type("compared", compared, "a comparison", "give run.compare(), or leave it out")
        job, summary = self.job, self._directory.summary
        return curves(
            self.epochs,
            {} if compared is None else compared.references(job.measures.main.name),
            title=job.name,
            best_epoch=None if summary is None else summary["best_epoch"],
            measures=job.measures,
        )

    @property
    def predictions(self) -> Predictions:
        """Predictions of all nodes by the newest joint inference; ``predict`` makes new ones."""
        return jobs.load_result(self.path).predictions

    def predict(
        self,
        nodes: Sequence[int] | None = None,
        *,
        ids: Sequence[str] | None = None,
        processes: bool = False,
        link: str | None = None,
    ) -> Predictions:
        """Predicts with all parties; only the label holder learns the result (horizontal: each holder its nodes').

        Tables are read again, and nodes added since are predicted too.

        Args:
            nodes: the rows to give back; default: all. The others do not learn which were asked for. A sealed or union
                job with ``named_nodes`` predicts no others, and has to be given some.
            ids: the nodes to give back by id, in place of ``nodes``: of runs from tables, and horizontal ones. In a
                union with ``named_nodes`` each holder names those that it has.
            processes: run every party in a process of its own.
            link: what joins the parties; default: memory, and sockets between processes.

        Raises:
            RunError: the run is not complete.
            ConfigError: a node does not exist.
        """
        return jobs.predict(
            self.path, nodes, ids=ids, options=jobs.RunOptions(custom=self._custom, processes=processes, link=link)
        )

    def explain(
        self, nodes: Sequence[int] | None = None, *, ids: Sequence[str] | None = None, party: PartyId | None = None
    ) -> list[Explanation]:
        """Says what of a holder's own data goes with the newest scores of some nodes, by number or id; asks nobody.

        Args:
            nodes: whose scores to explain; ``ids`` in place of them.
            ids: of runs from tables.
            party: the holder whose scores and data are used; default: the one with predictions.

        Raises:
            ConfigError: no node is named, or one does not exist; or the job opens no scores.
            DataError: the predictions are of tables that have changed since, or of too few nodes.
        """
        return explain(self._directory, nodes, ids=ids, party=party)

    def resume(
        self,
        *,
        restart: bool = False,
        processes: bool = False,
        link: str | None = None,
        machines: Mapping[PartyId, int] = ONE_MACHINE,
        progress: Progress = lambda records: None,
    ) -> Run:
        """Goes on with a run that was cut off, to the result that it would have had; a complete one stays as it is.

        Args:
            restart: where a party has lost its part, begin again in place of what the others have trained.
            processes: as in ``fit``; ``link``, ``machines`` and ``progress`` too.
            link: as in ``fit``.
            machines: as in ``fit``.
            progress: as in ``fit``.

        Raises:
            RunError: a party's part is missing; without ``restart`` also where parties share no checkpoint.
        """
        jobs.resume(
            self.path,
            restart=restart,
            options=jobs.RunOptions(
                custom=self._custom, processes=processes, link=link, machines=machines, progress=progress
            ),
        )
        return self

    def compare(self) -> Comparison:
        """Trains the run's network on each holder's data alone, and on all in one place, as nobody may have them.

        Raises:
            ConfigError: the job's paradigm has no such trainings.
            RunError: the run is not complete, or has not every holder's data.
        """
        self._compared = compare(self._directory)
        return self._compared

    def audit(
        self,
        *,
        adversaries: Sequence[str] | None = None,
        attacks: Sequence[str] | None = None,
        limits: Mapping[str, float | AttackLimit] | None = None,
        seed: int = 0,
        shadows: int = 4,
        progress: Callable[[str], None] = lambda words: None,
    ) -> AuditResult:
        """Attacks what each party saw, and measures the leakage; of a run with ``record_views``.

        Args:
            adversaries: parties, ``client``, or several together, such as ``server+B``; default: each by itself.
            attacks: by name; default: all.
            limits: attack → what it may find, over the job's own; a number is the highest AUC that passes.
            seed: of everything drawn; the same seed gives the same audit.
            shadows: models that adversaries train for membership inference.
            progress: called with what is about to be mounted.

        Raises:
            RunError: the run is not complete, or no views were recorded.
            ConfigError: something is named that there is not.
        """
        check_several("adversaries", adversaries, "parties")
        check_several("attacks", attacks, "names of attacks")
        check_whole(seed=seed, shadows=shadows)
        if limits is not None:
            check_mapping("limits", limits, "attack → what it may find")
        plan = AuditPlan(
            adversaries=None if adversaries is None else tuple(adversaries),
            attacks=None if attacks is None else tuple(attacks),
            limits=limits,
            seed=seed,
            shadows=shadows,
        )
        return audit(self.path, plan, progress)

    def report(self, out: str | Path | None = None, by: str | None = None) -> Path:
        """Writes one HTML page: the job in words, who learned what, how well it predicts, curves, traffic, the audit.

        Args:
            out: the page; default: ``report.html`` in the run's directory.
            by: a column of the label holder's tables, whose groups of test nodes are judged by themselves.

        Returns:
            Where it is.
        """
        return write_page(self._directory, None if out is None else path_of("out", out, "the page"), by)


def load_run(path: str | Path, *, custom: CustomModel | None = None) -> Run:
    """The run in a directory, complete or cut off; arguments and errors are those of ``Run``."""
    return Run(path, custom=custom)
