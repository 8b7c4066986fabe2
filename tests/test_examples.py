"""Tests over many examples: the machine's speed decides none of them."""

import ast

from hypothesis import settings

from tests.modules import ROOT, all_modules


def test_no_example_has_a_deadline() -> None:
    """Set once, in ``conftest.py``: what a test sets is added to it, and must not say otherwise."""
    assert settings.default is not None
    assert settings.default.deadline is None
    assert settings(max_examples=1).deadline is None


def test_only_the_common_settings_name_a_deadline() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in all_modules()}
    naming = {
        path.relative_to(ROOT).as_posix()
        for path, text in texts.items()
        if "deadline" in text or "_profile" in text  # parsing all of them takes seconds
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.keyword) and node.arg == "deadline")
        or (isinstance(node, ast.Attribute) and node.attr in ("register_profile", "load_profile"))
    }
    assert naming == {"conftest.py"}
