"""What FLARE interprets: where its code parses, expands, unpacks, imports or starts something, and by which names.

``python -m tests.attacks.parsers`` prints the list of the installed release, for ``parsers.txt``. Read each new line
first: can what another party sent reach it before ``guard.archive`` and ``guard.commands``?
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nvflare
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import JobConstants, SystemComponents, WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.lighter import tool_consts
from nvflare.private.defs import RequestHeader

LISTED = Path(__file__).with_suffix(".txt")
PARTS = (
    *("apis", "fuel", "fuel_opt", "private", "security", "utils", "widgets", "lighter/utils.py"),
    *("app_common/job_launcher", "app_common/job_schedulers", "app_common/logging", "app_common/resource_consumers"),
    *("app_common/resource_managers", "app_common/storages", "app_common/streamers", "app_common/widgets"),
    "app_opt/job_launcher",
)
"""Of FLARE, what runs in a site's processes; executors and workflows are veilgraph's own."""
VERBS = {
    *("load", "loads", "loadf", "safe_load", "full_load", "load_all", "load_config", "load_config_dict", "load_json"),
    *("load_config_from_str", "load_config_from_dict", "load_yaml", "load_content", "parse_file", "parse_string"),
    *("create", "deserialize", "unpackb", "fromstring", "literal_eval", "eval", "exec", "compile", "format_map"),
    *("import_module", "load_class", "instantiate_class", "build_component", "register_custom_folder", "exec_module"),
    *("dictConfig", "fileConfig", "unzip_all_from_bytes", "unzip_all_from_file", "unzip_single_file_from_bytes"),
    *("extract", "extractall", "ZipFile", "TarFile", "Popen", "system", "popen", "spawn_process", "check_output"),
    *("run_path", "run_module", "split", "walk", "glob", "rglob", "listdir", "parse_vars", "resolve_var_refs"),
    *("resolve_secret_refs", "expandvars", "expanduser", "urlopen", "Template", "substitute"),
}
AMBIGUOUS = {"load", "loads", "create", "compile", "system", "split", "glob"}
"""Verbs of many meanings, which count on these modules alone."""
MODULES = {"json", "yaml", "fobs", "OmegaConf", "pickle", "shlex", "glob", "os", "toml", "tomli"}


def calls() -> Iterator[str]:
    """File and call, of each that interprets something."""
    root = Path(nvflare.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(PARTS) and "simulator" not in name:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and (call := _interprets(node)):
                    yield f"{name} {call}"


def _interprets(node: ast.Call) -> str:
    match node.func:
        case ast.Name(verb) if verb in VERBS - AMBIGUOUS:
            return verb
        case ast.Attribute(_, "format") if any(word.arg is None for word in node.keywords):
            return "format(**)"
        case ast.Attribute(ast.Name(of), verb) if verb in AMBIGUOUS and of in MODULES:
            return f"{of}.{verb}"
        case ast.Attribute(_, verb) if verb in VERBS - AMBIGUOUS:
            return verb
    return ""


def names() -> Iterator[str]:
    """Files, folders, keys and hooks that FLARE looks for."""
    for holder in (WorkspaceConstants, JobConstants, tool_consts, RequestHeader, SystemComponents, EventType):
        label = holder.__name__.rpartition(".")[2]
        yield from (f"{label} {key}={value}" for key, value in vars(holder).items() if key.isupper())
    yield from (f"JobMetaKey {key.value}" for key in JobMetaKey)
    yield from (f"ConfigFormat {ending}={form.name}" for ending, form in ConfigFormat.config_ext_formats().items())


def found() -> list[str]:
    return sorted({*calls(), *names()})


if __name__ == "__main__":
    print("\n".join(found()))
