"""A finished run in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from veilgraph.cli.output import echo, results, say
from veilgraph.cli.telling import tell
from veilgraph.protocol.figures import CLASS_MEASURES, leak_words

if TYPE_CHECKING:
    from veilgraph.protocol.job import JobSettings
    from veilgraph.run.comparing import Comparison
    from veilgraph.run.jobs import TrainResult


def say_matches(settings: JobSettings) -> None:
    """Say, before anything is trained, how many of the holders' ids are common, where all tables are here.

    Raises:
        ConfigError: a holder refuses the job.
    """
    from veilgraph.protocol.aligning import match_rates  # noqa: PLC0415
    from veilgraph.run.inputs import accepted_by_parties  # noqa: PLC0415

    if settings.data.from_tables and not settings.data.is_apart:
        accepted_by_parties(settings)  # else its one error would come after other words
    for said in match_rates(settings):
        say(said)


def show_result(result: TrainResult) -> None:
    """What a training reached, what it cost, and where it is."""
    from veilgraph.report.alone import alone_words  # noqa: PLC0415
    from veilgraph.report.spent import life_note, spent_table, worth  # noqa: PLC0415
    from veilgraph.report.tables import run_table  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    draw(result, {})
    settings = RunDirectory.open(result.path).settings
    results().print(run_table(result.summary, settings.measures))
    if "privacy" in result.summary:
        results().print(spent_table(result.summary["privacy"], settings))
        for said in (worth(result.summary, settings), life_note(result.summary["privacy"])):
            if said:
                echo(said)
    if said := _of_labels(result, settings):
        echo(said)
    for said in alone_words(result.summary, settings.measures):
        echo(said)
    of_nodes = settings.measures.of == CLASS_MEASURES.of
    if said := leak_words({settings.name: result.summary.get("test_auc") if of_nodes else None}):
        echo(said)
    say_where(result.path)
    tell({"run": result.path, "summary": result.summary})


def show_comparison(result: TrainResult, compared: Comparison) -> None:
    """A run beside its network trained on each holder's data alone and on all of them in one place."""
    from veilgraph.report.tables import comparison_table  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    settings = RunDirectory.open(result.path).settings
    draw(result, compared.references(settings.measures.main.name))
    lent = (
        f"Alone without labels: lent {settings.data.label_party}'s. "
        if settings.is_aligned
        else "A holder alone is judged on its own nodes; so is the line below it. "
    )
    said = f"{lent}Pooled: all data in one place."
    results().print(comparison_table(compared.summaries(), said, settings.measures))
    if noted := _of_labels(result, settings):
        echo(f"federated: {noted}\nthe others: all figures compare with true labels.")


def _of_labels(result: TrainResult, settings: JobSettings) -> str:
    """Which labels a run's figures compare with, where not with true ones alone."""
    from veilgraph.report.labels import compared_with, expected_true  # noqa: PLC0415

    if settings.label_privacy is None:
        return ""
    classes = result.predictions.probabilities.shape[1]
    expected = expected_true(settings, result.summary.get("test_accuracy"), classes)
    return f"{compared_with(settings)} {expected}".rstrip()


def draw(result: TrainResult, references: dict[str, float]) -> None:
    """Writes the curves of a run, with lines for the main test figure of what it is compared with."""
    from veilgraph.report.curves import draw_curves  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    settings = RunDirectory.open(result.path).settings
    draw_curves(
        result.metrics,
        result.path / "curves.png",
        references,
        title=settings.name,
        best_epoch=result.summary["best_epoch"],
        measures=settings.measures,
    )


def say_where(path: Path) -> None:
    """Where a run and its files are."""
    echo(f"run     {path}")
    echo(f"curves  {path / 'curves.png'}")
    if (trace := path / "trace.json").is_file():
        echo(f"trace   {trace}: load it in chrome://tracing or ui.perfetto.dev")
    echo(f"predict with: veilgraph predict {path}")
