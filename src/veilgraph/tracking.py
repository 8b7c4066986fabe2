"""Epochs of a training in the tools in which a team looks at its experiments: TensorBoard and MLflow.

    vg.fit(job, on_epoch=vg.tracking.tensorboard("runs/board"))

Each gives a function for ``on_epoch=`` of ``vg.fit``, for one training. It is told an epoch with its figures, of
training, validation and test nodes alike, and whoever may look at the tool sees them; of data, settings and weights it
is told nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path

from veilgraph.core.errors import ConfigError
from veilgraph.runtime.store.run_directory import Record

__all__ = ["mlflow", "tensorboard"]


def tensorboard(folder: str | Path) -> Callable[[Record], None]:
    """Return a function for ``on_epoch=`` that writes each figure of an epoch as a scalar for ``tensorboard --logdir``.

    Args:
        folder: of the training's event file, made here; another one for another training.

    Raises:
        ConfigError: tensorboard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _not_installed("tensorboard", "pip install tensorboard") from error
    writer = SummaryWriter(str(Path(folder)))

    def note(record: Record) -> None:
        for name, value in _figures(record).items():
            writer.add_scalar(name, value, record["epoch"])
        writer.flush()

    return note


def mlflow() -> Callable[[Record], None]:
    """Return a function for ``on_epoch=`` that logs each figure as a metric of MLflow's active run, or of a new one.

    Raises:
        ConfigError: mlflow is not installed.
    """
    try:
        import mlflow as tool  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _not_installed("mlflow", "pip install mlflow-skinny") from error

    def note(record: Record) -> None:
        tool.log_metrics(_figures(record), step=record["epoch"])

    return note


def _figures(record: Mapping[str, object]) -> dict[str, float]:
    return {name: float(value) for name, value in record.items() if name != "epoch" and isinstance(value, Real)}


def _not_installed(name: str, way: str) -> ConfigError:
    return ConfigError(
        f"tracking.{name}: {name} is not installed; install it ({way}), or give on_epoch= a function of your own",
        key=f"tracking.{name}",
    )
