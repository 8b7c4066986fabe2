"""Every command with arguments that it cannot have: derived from the commands themselves."""

import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import typer

from tests.bad.case import Arguments, Case
from veilgraph.cli import app

_FINE = {("demo", "9" * 400)}
"""Very many epochs are no mistake."""
_WRONG = {int: ("x", "1.5", "-1", "9" * 400), float: ("x", "nan", "-1"), Literal: ("neither",)}


def commands() -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """(words, parameters) of every command."""

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
        if not hasattr(command, "commands"):
            yield words, [each for each in command.params if each.name != "help"]
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    return walk(typer.main.get_command(app), ())


def _kind(parameter: Any) -> Any:
    """What it holds: int, float, Path, str, or Literal."""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(each for each in get_args(annotation) if each is not type(None))
    return get_origin(annotation) or annotation


def _is_option(parameter: Any) -> bool:
    return str(parameter.opts[0]).startswith("-")


def _given(parameter: Any, value: str) -> list[str]:
    return [parameter.opts[0], value] if _is_option(parameter) else [value]


def _call(parameters: list[Any], **values: str) -> list[str]:
    """All that is required, beginning with "nowhere", and the values."""
    chosen = {each.name: "1" if _kind(each) is int else f"nowhere-{each.name}" for each in parameters if each.required}
    chosen |= values
    return [word for each in parameters if each.name in chosen for word in _given(each, chosen[each.name])]


def argument_cases() -> Iterator[Case]:
    """Too few and too many of them, unknown ones, values of other types, paths that lead nowhere."""
    for words, parameters in commands():
        name = " ".join(words)

        def case(sort: str, *given: str, words: tuple[str, ...] = words, name: str = name) -> Case:
            return Case(f"{name} {sort}"[:120], lambda folder: [*words, *given], "out")

        yield case("--nonsense", *_call(parameters), "--nonsense")
        yield case("with one word too many", *_call(parameters), "one", "two", "three")
        needed = [each for each in parameters if each.required]
        for missing in needed:
            yield case(f"without {missing.name}", *_call([each for each in parameters if each is not missing]))
        if needed:
            yield case("of what is not there", *_call(parameters))
            yield case("of an empty path", *_call(parameters, **{needed[0].name: ""}))
            if _kind(needed[0]) is Path:
                yield case("of a path that is too long", *_call(parameters, **{needed[0].name: "x/" * 3_000}))
                yield case("of a path with a NUL byte's escape", *_call(parameters, **{needed[0].name: "\udcff"}))
                yield case("of the folder that it is called in", *_call(parameters, **{needed[0].name: "."}))
        for option in parameters:
            for value in _WRONG.get(_kind(option), ()):
                if not getattr(option, "is_flag", False) and (name, value) not in _FINE:
                    yield case(f"{option.opts[0]} {value[:12]}", *_call(parameters, **{option.name: value}))
            if _is_option(option) and not getattr(option, "is_flag", False):
                yield case(f"{option.opts[0]} without its value", *_call(parameters), option.opts[0])
    for text in ("nonsense", "data nonsense", "net nonsense", "--nonsense", "-x", "cert --out"):
        yield Case(text, partial(_split, text))


def _split(text: str, folder: Path) -> Arguments:
    return [*text.split()]


def outputs() -> Iterator[Case]:
    """Results that cannot be written where they were asked for."""

    def given(words: list[str], folder: Path) -> Arguments:
        (folder / "job.yaml").write_text("data: {dataset: synthetic}\ntrain: {epochs: 1}\n", encoding="utf-8")
        (folder / "file").write_text("mine", encoding="utf-8")
        (folder / "full").mkdir()
        (folder / "full" / "mine.txt").write_text("mine", encoding="utf-8")
        (folder / "loop").symlink_to("loop")
        return [str(folder / word.removeprefix("@")) if word.startswith("@") else word for word in words]

    for command in (["train", "@job.yaml"], ["data", "export", "synthetic"], ["demo"]):
        for place in ("file", "full", "file/below", "loop", "loop/below", "x" * 300):
            words = [*command, "--out", f"@{place}"]
            yield Case(f"{' '.join(command)} --out {place[:20]}", partial(given, words), says=place[:20])
