"""What a person, or a stranger, wrote as YAML."""

from pathlib import Path

import pytest
import yaml

from tests.errors import refused
from veilgraph.core.errors import ConfigError
from veilgraph.core.yaml_file import SettingsLoader, read_yaml, yaml_bytes
from veilgraph.protocol.party_settings import TextLoader

SCALARS = "a: 007\nb: [no, 1e3, .inf, ~, 2001-02-03, 'x', é]\nc: &c {d: 1_000}\ne: {<<: *c, f: *c}\n"


def read(folder: Path, text: str, loader: type[SettingsLoader] = SettingsLoader) -> object:
    file = folder / "job.yaml"
    file.write_text(text, encoding="utf-8")
    return read_yaml(file, "job file", loader)


def test_plain_values_are_those_of_the_safe_loader(tmp_path: Path) -> None:
    assert read(tmp_path, SCALARS) == yaml.safe_load(SCALARS)


def test_of_a_party_file_every_scalar_but_null_is_its_text(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 007\nb: [no, ~, 1.5]", TextLoader) == {"a": "007", "b": ["no", None, "1.5"]}


@pytest.mark.parametrize("loader", [SettingsLoader, TextLoader])
@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 3", "x: [{y: 1, z: 2, y: 1}]", "a: &a {b: 1, b: 2}\nc: *a", "? {a: 1, a: 2}\n: 1"]
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str, loader: type[SettingsLoader]) -> None:
    with refused(ConfigError, code="not-yaml", key=Path("job.yaml")) as error:
        read(tmp_path, text, loader)
    assert "twice" in str(error.value)
    assert "line" in str(error.value)


def test_a_key_may_be_said_again_beside_what_is_merged_in_and_an_alias_is_no_second_key(tmp_path: Path) -> None:
    text = "base: &b {a: 1, c: 1}\nmine: {<<: *b, a: 2}\nother: *b\n"
    assert read(tmp_path, text) == {"base": {"a": 1, "c": 1}, "mine": {"a": 2, "c": 1}, "other": {"a": 1, "c": 1}}


@pytest.mark.parametrize("nested", ["[", "- ", "{a: ", "? ", "&x ["])
def test_what_is_nested_deep_is_refused_and_does_not_end_the_process(tmp_path: Path, nested: str) -> None:
    with refused(ConfigError, code="not-yaml", key=Path("job.yaml")):
        read(tmp_path, nested * 300_000)


@pytest.mark.parametrize(
    "text", ["a: [1", "a: !!python/object:os.system x", "a: *b", "a: 2001-02-31", "a: 1\n---\nb: 1"]
)
def test_what_is_no_yaml_or_asks_for_more_than_values_is_refused(tmp_path: Path, text: str) -> None:
    with refused(ConfigError, code="not-yaml", key=Path("job.yaml")):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: [1, *a]}"])
def test_what_is_a_part_of_itself_is_refused(tmp_path: Path, text: str) -> None:
    with refused(ConfigError, code="not-yaml", key=Path("job.yaml")):
        read(tmp_path, text)


def test_what_is_written_is_read_again_in_its_order(tmp_path: Path) -> None:
    content = {"b": "ü: 世\n \x85#", "a": [None, True, "yes", 1.5, float("inf"), "1"], "": {"long": "word " * 100}}
    again = read(tmp_path, yaml_bytes(content).decode())
    assert again == content
    assert isinstance(again, dict)
    assert list(again) == list(content)
    assert yaml.safe_load(yaml_bytes({"path": "a\udc80"})) == {"path": "a\udc80"}, "it is no Unicode, and escaped"


def test_what_aliases_make_large_is_refused_before_it_is_made(tmp_path: Path) -> None:
    """Three hundred bytes that stand for five million values took a minute and three quarters of a gigabyte."""
    line, file = ", ".join(["*{}"] * 9), tmp_path / "job.yaml"
    first = f"a0: &a0 [{', '.join('x' * 9)}]\n"
    text = first + "".join(f"a{n}: &a{n} [{line.replace('{}', f'a{n - 1}')}]\n" for n in range(1, 8))
    file.write_text(text, encoding="utf-8")
    with refused(ConfigError, code="not-yaml") as caught:
        read_yaml(file, "job")
    assert "aliases stand for more than 10,000 values" in str(caught.value)
    file.write_text("a: &a {b: [1, 2]}\nc: &c [*a, 3]\nd: [*c, *a]\n", encoding="utf-8")
    assert read_yaml(file, "job") == {
        "a": {"b": [1, 2]},
        "c": [{"b": [1, 2]}, 3],
        "d": [[{"b": [1, 2]}, 3], {"b": [1, 2]}],
    }
