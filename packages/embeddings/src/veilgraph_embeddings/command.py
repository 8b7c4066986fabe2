"""The command that makes embeddings to publish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.table import Table

from veilgraph.cli.app import Out, Overrides, command, override
from veilgraph.cli.output import echo, emit, messages, results
from veilgraph.core.deferred import deferred
from veilgraph.core.yaml_file import read_yaml

with deferred():
    from veilgraph_embeddings import Embeddings, directory, embed
    from veilgraph_embeddings.making import Progress
    from veilgraph_embeddings.settings import parse_embed_job


@command("embed", "veilgraph embed customers.yaml --set method=apge", json=True)
def embed_command(
    job: Path,
    out: Out = None,
    overrides: Overrides = None,
    ledger: Path | None = None,
) -> None:
    """Embed a graph for publication: keep one attribute, hide another, and attack the result.

    What may be published is in DIR/publish. The report of the attacks, before and after, is in DIR/private: it was
    computed from private values.

    Options:
        JOB.yaml (job): The embedding job.
        --ledger FOLDER: Folder of the lifetime ledger of data.graph. Default: next to that file.
    """
    said = read_yaml(job, "job file")
    if isinstance(said, Mapping):
        said = dict(said)
        for key, value in map(override, overrides or ()):
            _put(said, key.split("."), value)
    settings = parse_embed_job({} if said is None else said, str(job))
    with _progress() as progress:
        found = embed(settings, out=out, ledger=ledger, progress=progress)
    results().print(_table(found))
    echo(found.report["proof"])
    if said := found.report["ledger_note"]:
        echo(said)
    if not settings.method.kind.is_private:
        echo(
            "embeddings.csv is made of edges: where its columns are features of a party file, name them there in "
            f"nodes.columns_from_edges ({directory.FROM_EDGES}, with the prefix of the join)"
        )
    echo(f"publish {found.path / 'publish'}")
    echo(f"report  {found.page}")
    emit({"publish": found.path / "publish", "page": found.page, "report": found.report})


def _put(group: dict[str, Any], keys: list[str], value: object) -> None:
    """Replaces one setting; a group that was given by its name alone keeps it."""
    key, *rest = keys
    if not rest:
        group[key] = value
        return
    inner = group.get(key)
    short = {"method": "name", "keep": "column", "hide": "column"}.get(key)
    inner = {short: inner} if short and isinstance(inner, str | int) else dict(inner or {})
    _put(inner, rest, value)
    group[key] = inner


def _table(found: Embeddings) -> Table:
    report = found.report
    table = Table("", "before", "after")
    for name, part, of in (
        (f"{report['hide']['name']}: strongest attack's advantage", "attack", "advantage"),
        (f"{report['keep']['name']}: told right", "useful", "accuracy"),
    ):
        table.add_row(name, *(_figure(report[when][part][of]) for when in ("before", "after")))
    if report["after"]["links"] is not None:
        table.add_row("held-out edges, AUC", *(_figure(report[when]["links"]) for when in ("before", "after")))
    for each in report["ledger"]:
        table.add_row(f"ε of one {each['unit']}", "∞", f"{each['total']:.4g}")
    return table


def _figure(interval: Mapping[str, float]) -> str:
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows a stage's steps on one line."""
    with messages().status("preparing") as status:

        def shown(stage: str, step: int, steps: int) -> None:
            status.update(f"{stage} {step}/{steps}")

        yield shown
