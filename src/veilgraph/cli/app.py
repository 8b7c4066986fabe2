"""What all commands share: registration, one-line errors, options, start-up kits and their passphrases."""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from getpass import getpass
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Final, ParamSpec, get_args, get_origin

import typer
import yaml

from veilgraph.cli.output import LOG, echo, say, with_json
from veilgraph.core import __version__
from veilgraph.core.arguments import OPTIONS
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, VeilgraphError
from veilgraph.core.settings import installed
from veilgraph.core.text import Event
from veilgraph.core.yaml_file import parse_yaml, read_yaml
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.preset import Choice

with deferred():
    from veilgraph.deploy import key_file
    from veilgraph.deploy.kit import Kit
    from veilgraph.protocol.job_file import parse_with_choices, settings_class_of
    from veilgraph.samples.shipped import replaced, with_overrides

Parameters = ParamSpec("Parameters")

INTERRUPTED: Final = 130
FAILED: Final = 3
"""Exit code of a command that found what somebody asked it to look for."""

app = typer.Typer(
    name="veilgraph",
    help="Train one graph neural network across organisations that cannot share data.",
    epilog="Start with: veilgraph demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _add_group(name: str, words: str) -> typer.Typer:
    made = typer.Typer(name=name, help=words, no_args_is_help=True)
    app.add_typer(made)
    return made


data = _add_group("data", "Tables and data sets: check one's own, align all holders', export public ones.")
net = _add_group("net", "Jobs across organisations: provision, join, submit, answer, watch, serve.")
cert = _add_group("cert", "Certificates and private keys: request, sign, install, revoke, protect.")


# What these three give is typer's own and goes into an ``Annotated``, whatever its type.
def option(words: str = "", metavar: str | None = None, *, name: str | None = None, **bounds: Any) -> Any:  # noqa: ANN401
    """Declare an option: its help, what stands for its value, and its name where that is not the parameter's."""
    return typer.Option(*filter(None, [name]), help=words, metavar=metavar, **bounds)


def flag(name: str, words: str) -> Any:  # noqa: ANN401
    """Declare an option without a value, which has no opposite."""
    return typer.Option(name, help=words, metavar="")


def argument(words: str = "", metavar: str | None = None) -> Any:  # noqa: ANN401
    """Declare an argument."""
    return typer.Argument(help=words, metavar=metavar)


Overrides = Annotated[
    list[str] | None, option("Replace a setting of the job; may be given several times.", "KEY=VALUE", name="--set")
]
Out = Annotated[Path | None, option("Run directory to make. Default: runs/<job name>-<date>-<time>.", "DIR")]
Processes = Annotated[bool, flag("--processes", "Run every party in a process of its own.")]
Replace = Annotated[bool, flag("--replace", "Overwrite the file if it exists; changes made in it are lost.")]
LinkName = Annotated[
    str | None,
    option(
        "What joins the parties: memory, sockets, or one of an installed package. Default: memory, and sockets "
        "between processes.",
        "NAME",
        name="--link",
    ),
]

Ledgers = Annotated[
    list[str] | None,
    option(
        "Folder of this holder's lifetime ledger. Default: next to its saved graph. May be given several times.",
        "PARTY=FOLDER",
        name="--ledger",
    ),
]


def by_party(texts: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    """Read an option that is given once a party, as NAME=VALUE: party → its value.

    Raises:
        BadParameter: a text is of another form, which ``example`` has, or a party is there twice.
    """
    found: dict[str, str] = {}
    for text in texts or ():
        name, _, value = text.partition("=")
        if not name or not value:
            raise typer.BadParameter(f"{text!r} is not {example}", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice; give it once", param_hint=option)
        found[name] = value
    return found


def counts_by_party(
    texts: Sequence[str] | None, option: str, example: str, names: Sequence[str] = ()
) -> dict[str, int]:
    """Read an option that is given once a party, as NAME=COUNT: party → count; ``names``: those allowed, if not all."""
    found = by_party(texts, option, example)
    for name, count in found.items():
        if not (count.isascii() and count.isdigit()) or (names and name not in names):
            raise typer.BadParameter(f"'{name}={count}' is not {example}", param_hint=option)
    return {name: int(count) for name, count in found.items()}


def ledgers_of(texts: Sequence[str] | None) -> dict[str, Path] | None:
    """Read ``--ledger`` texts, PARTY=FOLDER each: holder → folder; None without any."""
    found = by_party(texts, "--ledger", "PARTY=FOLDER, as in shop=ledgers/shop")
    return {name: Path(folder) for name, folder in found.items()} or None


def command(
    name: str, example: str, group: typer.Typer | None = None, *, json: bool = False, further: bool = False
) -> Callable[[Callable[Parameters, None]], Callable[Parameters, None]]:
    """Register a command, of ``group`` if there is one, that reports its errors on one line and exits with 1.

    ``example`` is a call of it, and its docstring's part ``Options`` has words of its parameters, as ``_with_help``
    reads them. With ``json`` it has ``--json``, and emits what it found; with ``further`` it refuses words beyond its
    arguments itself, which are in its context's ``args``.
    """

    def register(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
        inner = with_json(_with_help(function)) if json else _with_help(function)

        @wraps(inner)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
            with reported():
                inner(*args, **kwargs)

        settings = {"allow_extra_args": True} if further else None
        return (group or app).command(name, epilog=f"Example: {example}", context_settings=settings)(run)

    return register


_ENTRY: Final = re.compile(r"(--[\w-]+)? ?([^ ()]*) ?(?:\((\w+)\))?")


def _with_help(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Give parameters their help from the part ``Options`` of a command's docstring, and remove that part there.

    An entry is ``--name METAVAR (parameter): words``: without METAVAR where the type says enough, and without the
    parameter where the name is its; without ``--name`` it is of an argument.
    """
    if sys.flags.optimize > 1:
        raise SystemExit("veilgraph: python -OO has no docstrings, which name options; run it without, or with -O")
    text, _, options = (inspect.getdoc(function) or "").partition("\n\nOptions:\n")
    signature = inspect.signature(function, eval_str=True)
    parameters = dict(signature.parameters)
    for entry in re.split(r"\n(?=\S)", dedent(options)) if options else ():
        head, _, words = " ".join(entry.split()).partition(": ")
        found = _ENTRY.fullmatch(head)
        assert found is not None, head
        name, metavar, key = found.groups()
        key = key or name.removeprefix("--").replace("-", "_")
        kind, said = parameters[key].annotation, argument() if name is None else option()
        if get_origin(kind) is Annotated:
            kind, said = get_args(kind)
        said.help, said.metavar = words, "" if kind is bool else metavar or None
        if name is not None:
            said.param_decls = (name,)
        parameters[key] = parameters[key].replace(annotation=Annotated[kind, said])
    function.__doc__ = text
    function.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    function.__annotations__ = {key: each.annotation for key, each in parameters.items()}
    return function


def add_installed() -> None:
    """Import the modules of installed packages that register commands: entry points ``veilgraph.commands``."""
    for each in installed("veilgraph.commands"):
        try:
            each.load()
        except Exception as error:  # noqa: BLE001 - another package's fault must not take away every command
            say(f"the commands of {each.value} cannot be loaded ({error}); mend or remove that package")


def refuse_given(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise ``BadParameter`` if one of these parameters is given, as it means nothing here; ``why``: the way out."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            option = next(each for each in context.command.params if each.name == name)
            raise typer.BadParameter(why, param_hint=option.opts[0])


@contextmanager
def reported() -> Iterator[None]:
    """Turn our errors and the system's in the block into one line and exit code 1, and an interrupt into 130."""
    with warnings.catch_warnings():
        # Sparse CSR is all that is needed of it here, and tested; the user can do nothing about torch's notice.
        warnings.filterwarnings("ignore", message=".*[Ss]parse CSR tensor support.*", category=UserWarning)
        before, options = LOG.set(None), OPTIONS.set(True)
        try:
            yield
        except (VeilgraphError, ModuleNotFoundError) as error:
            known = error if isinstance(error, VeilgraphError) else _missing_extra(error)
            say(Event("error", f"error: {known}", level="error", code=known.code))
            raise typer.Exit(1) from error
        except BrokenPipeError:  # whoever read the results has had enough: typer's to end
            raise
        except OSError as error:
            of = "" if error.filename is None else f"{str(error.filename)[:200]}: "
            words = f"error: {of}{error.strerror or error}; give another path, or mend what is there"
            say(Event("error", words, level="error", code="system"))
            raise typer.Exit(1) from error
        except KeyboardInterrupt as interrupt:
            say("stopped")
            raise typer.Exit(INTERRUPTED) from interrupt
        finally:
            LOG.reset(before)
            OPTIONS.reset(options)


def _missing_extra(error: ModuleNotFoundError) -> ConfigError:
    """Return an error that says how to install the extra ``deploy``; raise ``error`` itself if another module lacks."""
    if (error.name or "").partition(".")[0] not in {"h11", "prometheus_client"}:
        raise error
    return ConfigError(
        f"{error.name} is not installed, and this command needs it; in a checkout: pip install '.[deploy]'"
    )


@app.callback(invoke_without_command=True)
def _veilgraph(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    if version:
        echo(f"veilgraph {__version__}")
        raise typer.Exit


def check_new(out: Path, *, replace: bool) -> None:
    """Refuse an ``--out`` that exists, unless ``replace``."""
    if out.exists() and not replace:
        raise ConfigError(f"--out {out}: exists; choose another name, or add --replace to write it anew")


def read_settings(job: Path, overrides: Sequence[str] | None) -> JobSettings:
    """Read a job file, with ``overrides``, KEY=VALUE each, of its settings."""
    return read_chosen(job, overrides)[0]


def read_chosen(job: Path, overrides: Sequence[str] | None) -> tuple[JobSettings, list[Choice]]:
    """Read a job file with ``overrides``; also return what its preset chose where neither of these says anything."""
    content = read_yaml(job, "job file")
    if not overrides:
        return parse_with_choices({} if content is None else content, str(job))
    changes = dict(map(override, overrides))
    said = settings_class_of({} if content is None else content, str(job))[1]
    try:
        settings = parse_with_choices(said, str(job))[0]
    except ConfigError:  # what replaces its settings may mend it
        return parse_with_choices(replaced(said, changes, whole=False), f"{job} with overrides")
    if "paradigm" not in changes:  # whose keys are others
        replaced(settings.model_dump(mode="json"), changes)
    return parse_with_choices(replaced(said, changes, whole=False), f"{settings.name} with overrides")


def overridden(settings: JobSettings, overrides: Sequence[str] | None) -> JobSettings:
    """Return a job with ``overrides``, KEY=VALUE each, of its settings."""
    return with_overrides(settings, dict(map(override, overrides))) if overrides else settings


def override(text: str) -> tuple[str, object]:
    """Split ``a.b=value`` into key and value, which is parsed as YAML; ``BadParameter`` for another form."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE, as in model.rounds=2", param_hint="--set")
    try:
        return key, parse_yaml(value)
    except (yaml.YAMLError, ValueError) as error:
        raise typer.BadParameter(f"{text!r}: the value is not YAML", param_hint="--set") from error


PassphraseFile = Annotated[
    Path | None,
    option(
        "File with the private key's passphrase, with mode 600. Default: VEILGRAPH_PASSPHRASE, or a prompt.",
        "FILE",
        name="--passphrase-file",
    ),
]


def passphrase_source(file: Path | None, *, of: Path, fresh: bool = False) -> key_file.Passphrase:
    """Return a function that gets a passphrase once: from ``file``, the environment, or a prompt that names ``of``.

    ``fresh``: it will seal a key, so a person types it twice.
    """

    @cache
    def ask() -> bytes:
        if file is not None:
            return _read_passphrase(file)

        if key_file.PASSPHRASE_VARIABLE in os.environ:
            return os.environb[key_file.PASSPHRASE_VARIABLE.encode()]
        if not at_a_terminal():
            raise ConfigError(
                f"the private key of {of} takes a passphrase, and nobody can type it here; give --passphrase-file, or "
                f"set {key_file.PASSPHRASE_VARIABLE}"
            )
        typed = getpass(f"{'New passphrase' if fresh else 'Passphrase'} for {of}: ")
        if fresh and typed != getpass("The same again: "):
            raise ConfigError("the two passphrases differ; run the command again")
        return typed.encode()

    return ask


def at_a_terminal() -> bool:
    """Whether somebody can type an answer."""
    return sys.stdin.isatty()


def _read_passphrase(file: Path) -> bytes:
    try:
        mode, content = file.stat().st_mode, file.read_bytes()
    except OSError as error:
        raise ConfigError(f"--passphrase-file {file}: cannot be read ({error.strerror}); give another") from error
    if mode & 0o077:
        raise ConfigError(
            f"--passphrase-file {file}: others can read it, too (mode {mode & 0o777:o}); chmod 600 {file}"
        )
    if not (first := content.splitlines()[:1]) or not first[0]:
        raise ConfigError(f"--passphrase-file {file}: its first line is empty; write the passphrase there")
    return first[0]


def open_kit(path: Path, passphrase_file: Path | None = None) -> Kit:
    """Open the kit in a folder; its passphrase is read or asked for when its key is first needed."""
    return Kit.open(path, passphrase_source(passphrase_file, of=path))
