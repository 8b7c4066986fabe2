"""A release of FLARE that interprets more than the one that was read is noticed."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from tests.attacks import parsers


def test_flare_has_no_parser_hook_or_name_that_was_not_read() -> None:
    """Where it fails: read the new lines, then ``python -m tests.attacks.parsers > tests/attacks/parsers.txt``."""
    assert parsers.found() == parsers.LISTED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("text.format(**variables)", "format(**)"),
        ("yaml.load(text)", "yaml.load"),
        ("loader.load_config_from_str(text)", "load_config_from_str"),
        ("eval(text)", "eval"),
        ("zip.extractall(folder)", "extractall"),
        ("text.format(a)", ""),
        ("text.split()", ""),
    ],
)
def test_the_scan_knows_an_interpreter(code: str, call: str) -> None:
    node = ast.parse(code, mode="eval").body
    assert isinstance(node, ast.Call)
    assert parsers._interprets(node) == call


def test_what_was_reported_is_listed() -> None:
    listed = set(parsers.found())
    for line in (
        "fuel/utils/wfconf.py format(**)",
        "fuel_opt/utils/pyhocon_loader.py parse_file",
        "fuel_opt/utils/omegaconf_loader.py OmegaConf.load",
        "private/fed/server/job_meta_validator.py load_config_from_str",
        "private/fed/app/default_app_validator.py load_config",
        "private/fed/client/training_cmds.py unzip_all_from_bytes",
        "WorkspaceConstants CUSTOM_FOLDER_NAME=custom",
        "JobMetaKey stats_pool_config",
        "ConfigFormat .conf=PYHOCON",
    ):
        assert line in listed
