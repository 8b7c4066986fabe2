"""Jobs that an administrator's kit signs and that FLARE would interpret: environment, files, services, memory, code.

Each attack succeeds on what FLARE does with a configuration, and fails at the gate, where nothing of it is read.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import shutil
import stat
import struct
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

from nvflare.apis.app_validation import AppValidationKey
from nvflare.apis.fl_constant import JobConstants, WorkspaceConstants
from nvflare.apis.job_def import JobMetaKey
from nvflare.app_common.streamers import file_streamer
from nvflare.fuel.f3.message import Message
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.reg import CommandRegister
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.hci import AdminServer
from nvflare.fuel.utils import zip_utils
from nvflare.fuel.utils.config import ConfigFormat
from nvflare.fuel.utils.config_factory import ConfigFactory
from nvflare.fuel.utils.json_scanner import JsonScanner
from nvflare.fuel.utils.wfconf import resolve_var_refs
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_folder_signature
from nvflare.private import admin_defs
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.fed.app.default_app_validator import DefaultAppValidator
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator
from nvflare.private.fed.utils.app_deployer import AppDeployer

from tests.attacks.archives import ADMINISTRATOR, Change, Submissions, app_of, job_of, settings
from veilgraph.core.errors import ConfigError
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.guard import archive, commands
from veilgraph.deploy.guard.archive import MAX_ARCHIVE_BYTES, Refused, hold_app, hold_job
from veilgraph.deploy.kit import SiteWork
from veilgraph.deploy.revocation import LIST_FILE, install_list
from veilgraph.deploy.submission import (
    CLIENT_CONFIG,
    Request,
    config_files,
    decode_request,
    encode_request,
    is_meta,
    meta_file,
)
from veilgraph.deploy.submit import write_submission

Signed = Callable[[str], tuple[bytes, bytes]]
JOB_ID = "aaaaaaaa-1111-4111-8111-111111111111"
SECRET = "hunter2"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Submissions:
    return Submissions.provisioned(tmp_path_factory.mktemp("project"))


@pytest.fixture(autouse=True)
def nothing_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp"):
        monkeypatch.setattr(tempfile, name, lambda *_, **__: pytest.fail("it was unpacked"))


def refuse(made: Submissions, folder: Path) -> None:
    """Both archives are refused, and neither is the other's."""
    for hold, content in ((hold_app, app_of(folder)), (hold_job, job_of(folder))):
        with pytest.raises(Refused):
            hold(content, made.kits["A"])


def test_an_honest_submission_passes_and_flare_reads_what_is_made_anew(made: Submissions, tmp_path: Path) -> None:
    folder = made.write()
    app, job = hold_app(app_of(folder), made.kits["A"]), hold_job(job_of(folder), made.kits["server"])
    assert app.submitter == (ADMINISTRATOR, "example_org", "project_admin")
    assert JobMetaValidator().validate("job", job)[:2] == (True, "")
    zip_utils.unzip_all_from_bytes(app.archive, str(tmp_path))
    assert verify_folder_signature(str(tmp_path), str(made.kits["A"] / "startup" / "rootCA.pem"))
    assert DefaultAppValidator("client").validate(str(tmp_path)) == ("", {})
    for hold, content in ((hold_app, job_of(folder)), (hold_job, app_of(folder))):
        with pytest.raises(Refused) as caught:
            hold(content, made.kits["A"])
        assert "files" in str(caught.value)


# What FLARE makes of text


EXPANDED: dict[str, tuple[str, object]] = {
    "a letter of the environment": ("-{$VEILGRAPH_SECRET[3]}", f"-{SECRET[3]}"),
    "the environment": ("{$VEILGRAPH_SECRET}", SECRET),
    "memory": ("-{SITE_NAME:>150000}", "-" + "A".rjust(150_000)),
    "an item of the configuration": ("-{inc[means][0]:.4f}", "-0.2500"),
    "a definition": ("{@def:means=1}", {"x": 1}),
}
"""Text in a configuration, and what FLARE makes of it."""
HOSTILE = (
    *(text for text, _ in EXPANDED.values()),
    "${secret:file:/etc/hostname}",
    "${secret:HOME}",
    'include file("../x")',
    "{{",
    "}",
    "%s",
)


def expand(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration as FLARE's configurator has it, in a job's process."""
    variables = {"SITE_NAME": "A", "inc": {"means": [0.25]}, "@def": {"x": "{means}"}}
    resolve_var_refs(JsonScanner(config, ["here"]), variables)
    return config


@pytest.mark.parametrize("kind", EXPANDED)
def test_flare_expands_text_and_finds_nothing_in_a_request(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILGRAPH_SECRET", SECRET)
    text, made_of_it = EXPANDED[kind]
    assert expand({"args": {"job": {"name": text}}})["args"]["job"]["name"] == made_of_it

    request = encode_request({"name": text, "all": list(HOSTILE), text: 1}, text, resume=False)
    for content in config_files(request).values():
        config = json.loads(content)
        assert expand(json.loads(content)) == config
        assert text.encode() not in content
    assert decode_request(request) == Request({"name": text, "all": list(HOSTILE), text: 1}, text, False)


@pytest.mark.parametrize("which", ["file", "url"])
def test_flare_reads_files_and_services_that_a_configuration_names(
    which: str, made: Submissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.conf").write_text(f'password = "{SECRET}"')
    place = f'file("{tmp_path}/secret.conf")' if which == "file" else f'url("file://{tmp_path}/secret.conf")'
    (tmp_path / "config_fed_client.conf").write_text(f"include {place}\n")
    loaded = ConfigFactory.load_config(CLIENT_CONFIG, [str(tmp_path)])
    assert loaded is not None
    assert loaded.to_dict() == {"password": SECRET}

    def as_hocon(folder: Path) -> None:
        config = folder / "veilgraph" / "config"
        (config / CLIENT_CONFIG).unlink()
        shutil.copy(tmp_path / "config_fed_client.conf", config)

    refuse(made, made.write(as_hocon))


def test_a_submission_has_no_text_of_its_job_but_the_name(made: Submissions) -> None:
    folder = made.write(model={"dim": 48})
    for path in (folder / "veilgraph").rglob("config_*"):
        assert "dim" not in path.read_text()
    assert json.loads((folder / "meta.json").read_text())["name"] == "fraud"


@pytest.mark.parametrize(
    "text",
    [None, 7, "", "e30=", "{}", "x", encode_request({}, "train", resume=False) + "\n",
     encode_request({}, "a", resume=True)[:-4], "A" * (1 << 20), "e" * (1 << 16), "W1tb" * 10_000],
)  # fmt: skip
def test_what_is_no_request(text: object) -> None:
    with pytest.raises(ConfigError) as caught:
        decode_request(text)
    assert "submit with the same release" in str(caught.value)


def test_a_request_has_one_text() -> None:
    """Else what was signed could be written so that it is read otherwise: twice the same key, spaces, other letters."""
    honest = base64.b64decode(encode_request({"a": 1.5}, "train", resume=False))
    assert honest == b'{"job":{"a":1.5},"resume":false,"work":"train"}'
    others = [
        honest.replace(b":", b": "), honest.replace(b"1.5", b"1.50"), honest.replace(b'"a"', b'"\\u0061"'),
        honest.replace(b'"a"', b'"a":1,"a"'), honest[:-1] + b',"x":1}', honest.replace(b"false", b"0"),
        honest.replace(b"1.5", b"NaN"), b'{"job":[],"resume":false,"work":"train"}', b"[" * 40000,
    ]  # fmt: skip
    for other in others:
        with pytest.raises(ConfigError):
            decode_request(base64.b64encode(other).decode())


def test_a_request_that_is_too_long_is_refused_where_it_is_written(tmp_path: Path) -> None:
    long = settings().model_copy(update={"name": "x" * 70_000})
    with pytest.raises(ConfigError) as caught:
        write_submission(tmp_path, long, "train", resume=False, sites=("A", "C"))
    assert "at most 65536" in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        write_submission(tmp_path, settings(), "train", resume=False, sites=("A", "{SITE_NAME}"))
    assert "rename" in str(caught.value)


# What FLARE looks for by name


NAMES = sorted(
    {value for holder in (WorkspaceConstants, JobConstants) for key, value in vars(holder).items()
     if isinstance(value, str) and value and not key.startswith("__") and value not in ("meta", "sites", "image")}
    | {f"{stem}{ending}" for ending in ConfigFormat.extensions()
       for stem in ("config_fed_client", "config_fed_server", "meta", "log_config", "comm_config", "application")}
    | {"custom/x.py", "config/custom/x.py", "__init__.py", ".hidden", f"x/{NVFLARE_SIG_FILE}", "x__resources.json", "x"}
)  # fmt: skip


@pytest.mark.parametrize("folder", ["", "veilgraph/", "veilgraph/config/"])
def test_no_further_file_of_any_name_passes(made: Submissions, folder: str) -> None:
    assert len(NAMES) > 60
    signed = made.write()
    app, job = app_of(signed), job_of(signed)
    for name in NAMES:
        with pytest.raises(Refused) as caught:
            hold_job(_added(job, f"job/{folder}{name}"), made.kits["server"])
        assert "its files are not" in str(caught.value)
        with pytest.raises(Refused) as caught:
            hold_app(_added(app, folder.removeprefix("veilgraph/") + name), made.kits["A"])
        assert "its files are not" in str(caught.value)


def test_a_further_file_that_is_signed_does_not_pass(made: Submissions) -> None:
    def add(folder: Path) -> None:
        (folder / "veilgraph" / "custom").mkdir()
        (folder / "veilgraph" / "custom" / "x.py").write_text("")

    refuse(made, made.write(add))


def _added(content: bytes, name: str) -> bytes:
    out = io.BytesIO(content)
    with zipfile.ZipFile(out, "a") as more, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the name is there already
        more.writestr(zipfile.ZipInfo(name), b"{}")
    return out.getvalue()


def _config(change: Callable[[dict[str, Any]], object], file: str = CLIENT_CONFIG) -> Change:
    def apply(folder: Path) -> None:
        path = folder / "veilgraph" / "config" / file
        config = json.loads(path.read_bytes())
        change(config)
        path.write_text(json.dumps(config, sort_keys=True, separators=(",", ":")))

    return apply


def _bytes(change: Callable[[bytes], bytes], file: str = f"veilgraph/config/{CLIENT_CONFIG}") -> Change:
    def apply(folder: Path) -> None:
        (folder / file).write_bytes(change((folder / file).read_bytes()))

    return apply


def _other_request(folder: Path) -> None:
    path = folder / "veilgraph" / "config" / CLIENT_CONFIG
    path.write_bytes(config_files(encode_request({"name": "other"}, "train", resume=False))[CLIENT_CONFIG])


FORMS: dict[str, Change] = {
    "another class": _config(lambda c: c["executors"][0]["executor"].update(path="pathlib.Path")),
    "its arguments": _config(lambda c: c["executors"][0]["executor"]["args"].update(x="{$HOME}")),
    "a component": _config(lambda c: c["components"].append({"id": "x", "path": "logging.FileHandler"})),
    "a variable": _config(lambda c: c.update(x="{$HOME}")),
    "filters": _config(lambda c: c.update(task_data_filters=[])),
    "at the server": _config(lambda c: c.update(x=1), "config_fed_server.json"),
    "an open request": _config(lambda c: c["executors"][0]["executor"]["args"].update(request={"job": "{$HOME}"})),
    "braces in the request": _config(lambda c: c["executors"][0]["executor"]["args"].update(request="{$HOME}")),
    "a long request": _config(lambda c: c["executors"][0]["executor"]["args"].update(request="A" * 65_537)),
    "no request": _config(lambda c: c["executors"][0]["executor"]["args"].update(request="")),
    "another request": _other_request,
    "a space": _bytes(lambda content: content + b" "),
    "a line": _bytes(lambda content: b"\n" + content),
    "nothing": _bytes(lambda content: b""),
    "zeros": _bytes(lambda content: bytes(len(content))),
}
METAS: dict[str, Change] = {
    "a scope": _bytes(lambda content: _with(content, "scope"), "meta.json"),
    "resources": _bytes(
        lambda content: content.replace(b'"resource_spec":{}', b'"resource_spec":{"A":{}}'), "meta.json"
    ),
    "a name": _bytes(lambda content: content.replace(b'"fraud"', b'"{$HOME}"'), "meta.json"),
    "a name that is none": _bytes(lambda content: content.replace(b'"fraud"', b"7"), "meta.json"),
    "a site": _bytes(lambda content: content.replace(b'"C"', b'"{x}"'), "meta.json"),
    "all sites": _bytes(lambda content: content.replace(b'["server","A","C"]', b'["@ALL"]'), "meta.json"),
    "spaces": _bytes(lambda content: content + b"\n", "meta.json"),
    "depth": _bytes(lambda content: b"[" * 60_000, "meta.json"),
}


def _with(content: bytes, key: str) -> bytes:
    return json.dumps(json.loads(content) | {key: "x"}, sort_keys=True, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def signed(made: Submissions) -> Signed:
    """Both archives of a submission of some form, as an administrator signs it."""

    @cache
    def archives(form: str) -> tuple[bytes, bytes]:
        folder = made.write((FORMS | METAS).get(form))
        return app_of(folder), job_of(folder)

    return archives


@pytest.mark.parametrize("form", FORMS)
def test_no_other_form_passes(made: Submissions, signed: Signed, form: str) -> None:
    for hold, content in zip((hold_app, hold_job), signed(form), strict=True):
        with pytest.raises(Refused) as caught:
            hold(content, made.kits["A"])
        assert "not of the one form" in str(caught.value)


@pytest.mark.parametrize("form", METAS)
def test_no_other_facts_of_the_job_pass(made: Submissions, signed: Signed, form: str) -> None:
    app, job = signed(form)
    assert hold_app(app, made.kits["A"])
    with pytest.raises(Refused) as caught:
        hold_job(job, made.kits["server"])
    assert "meta.json" in str(caught.value)


def test_no_further_key_of_a_job_passes() -> None:
    honest = meta_file("fraud", ("A", "C"))
    assert is_meta(honest)
    assert is_meta(meta_file("fraud (check)", ()))
    for key in (*(each.value for each in JobMetaKey), AppValidationKey.BYOC, "x"):
        changed = _with(honest, key)
        if key == "deploy_map":
            with pytest.raises(TypeError):
                is_meta(changed)
        elif key != "name":
            assert not is_meta(changed), key


# Who signed


@pytest.mark.parametrize("signer", ["C", "server", None])
def test_administrators_alone_sign(made: Submissions, signer: str | None) -> None:
    refuse(made, made.write(signer=signer))


def _unsigned(path: str) -> Callable[[Path], None]:
    return lambda folder: (folder / path / NVFLARE_SIG_FILE).unlink()


def _emptied(folder: Path) -> None:
    (folder / "veilgraph" / "config" / NVFLARE_SIG_FILE).write_text("{}")


def _changed(folder: Path) -> None:
    path = folder / "veilgraph" / "config" / CLIENT_CONFIG
    request = encode_request(settings(seed=7).model_dump(mode="json"), "train", resume=False)
    for name, content in config_files(request).items():
        path.with_name(name).write_bytes(content)


@pytest.mark.parametrize(
    "change",
    [_unsigned("veilgraph"), _unsigned("veilgraph/config"), _emptied, _changed],
    ids=["app", "config", "no", "new"],
)
def test_what_is_changed_after_signing_is_refused(made: Submissions, change: Callable[[Path], None]) -> None:
    folder = made.write()
    change(folder)
    refuse(made, folder)


def test_each_folder_has_the_same_signer(made: Submissions) -> None:
    folder = made.write()
    config = folder / "veilgraph" / "config"
    shutil.copy(made.kits["C"] / "startup" / "client.crt", config / NVFLARE_SUBMITTER_CRT_FILE)
    refuse(made, folder)


def test_another_projects_administrator_signs_nothing_here(made: Submissions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with tempfile.TemporaryDirectory() as folder:
        other = Submissions.provisioned(Path(folder))
        content = app_of(other.write())
        assert hold_app(content, other.kits["A"])
    with pytest.raises(Refused):
        hold_app(content, made.kits["A"])


def test_a_revoked_administrator_signs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with tempfile.TemporaryDirectory() as folder:
        project = Submissions.provisioned(Path(folder))
        content = app_of(project.write())
        assert hold_app(content, project.kits["A"])
        authority = Authority(project.folder / "project" / "authority")
        revoke(authority, ADMINISTRATOR, datetime.now(UTC))
        install_list(project.kits["A"], project.folder / "project" / "authority" / LIST_FILE)
        with pytest.raises(Refused) as caught:
            hold_app(content, project.kits["A"])
        assert "revoked" in str(caught.value)


# Archives


def repacked(content: bytes, change: Callable[[zipfile.ZipInfo, bytes], tuple[zipfile.ZipInfo, bytes] | None]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            if (changed := change(entry, old.read(entry))) is not None:
                new.writestr(*changed)
    return out.getvalue()


def _compressed(entry: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry, data


def _bomb(entry: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    if not entry.filename.endswith(CLIENT_CONFIG):
        return entry, data
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry, bytes(64 << 20)


def _linked(entry: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
    if entry.filename.endswith(CLIENT_CONFIG):
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    return entry, data


def _renamed(name: str) -> Callable[[zipfile.ZipInfo, bytes], tuple[zipfile.ZipInfo, bytes]]:
    def change(entry: zipfile.ZipInfo, data: bytes) -> tuple[zipfile.ZipInfo, bytes]:
        if entry.filename.endswith(CLIENT_CONFIG):
            entry.filename = name
        return entry, data

    return change


ARCHIVES = {
    "compressed": _compressed,
    "a bomb": _bomb,
    "a link": _linked,
    "above": _renamed("../config_fed_client.json"),
    "absolute": _renamed("/etc/config_fed_client.json"),
    "nested": _renamed("config/a/config_fed_client.json"),
    "other slashes": _renamed("config\\config_fed_client.json"),
    "other letters": _renamed("CONFIG/config_fed_client.json"),
}


@pytest.mark.cases(5)
@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_is_refused_from_its_directory(made: Submissions, kind: str) -> None:
    folder = made.write()
    for hold, content in ((hold_app, app_of(folder)), (hold_job, job_of(folder))):
        hostile = repacked(content, ARCHIVES[kind])
        assert len(hostile) < MAX_ARCHIVE_BYTES
        tracemalloc.start()
        with pytest.raises(Refused):
            hold(hostile, made.kits["A"])
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 8 << 20


def _twice(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(CLIENT_CONFIG))
    return _added(content, name)


def _directory(field: int, value: int, file: str = CLIENT_CONFIG) -> Callable[[bytes], bytes]:
    """Another value in the directory's entry of a file: 8 flags, 10 method, 16 checksum, 20 and 24 sizes."""

    def change(content: bytes) -> bytes:
        end = content.rindex(f"config/{file}".encode())
        start = content.rindex(b"PK\x01\x02", 0, end)
        size = 2 if field < 16 else 4
        return content[: start + field] + struct.pack("<I", value)[:size] + content[start + field + size :]

    return change


def _many(content: bytes) -> bytes:
    out = io.BytesIO(content)
    with zipfile.ZipFile(out, "a") as more:
        for number in range(5000):
            more.writestr(zipfile.ZipInfo(f"{number:x}"), b"")
    assert len(out.getvalue()) < MAX_ARCHIVE_BYTES
    return out.getvalue()


RAW: dict[str, Callable[[bytes], bytes]] = {
    "twice": _twice,
    "no archive": lambda content: b"PK",
    "nothing": lambda content: b"",
    "too long": lambda content: content + bytes(MAX_ARCHIVE_BYTES),
    "cut": lambda content: content[:-30],
    "a gigabyte declared": _directory(24, 1 << 30),
    "a gigabyte packed": _directory(20, 1 << 30),
    "both": lambda content: _directory(20, 1 << 30)(_directory(24, 1 << 30)(content)),
    "less declared": lambda content: _directory(20, 4)(_directory(24, 4)(content)),
    "another checksum": _directory(16, 7),
    "encrypted": _directory(8, 1),
    "patched": _directory(8, 0x20),
    "many": _many,
}


@pytest.mark.parametrize("kind", RAW)
def test_an_archive_that_says_other_than_it_has(made: Submissions, kind: str) -> None:
    folder = made.write()
    for hold, content in ((hold_app, app_of(folder)), (hold_job, job_of(folder))):
        with pytest.raises(Refused):
            hold(RAW[kind](content), made.kits["A"])
    for other in (None, "text", bytearray(app_of(folder)), 7):
        with pytest.raises(Refused):
            hold_app(other, made.kits["A"])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_nothing_is_decompressed(made: Submissions, method: int) -> None:
    """Also where the sizes agree: a decompressor takes memory by what the data says."""
    with pytest.raises(Refused) as caught:
        hold_app(_directory(10, method)(app_of(made.write())), made.kits["A"])
    assert "compressed" in str(caught.value)


def test_what_surrounds_the_files_of_an_archive_reaches_nobody(made: Submissions) -> None:
    """A prefix, a comment, further fields, attributes and dates."""
    content = app_of(made.write())
    out = io.BytesIO(b"MZ" * 1000 + content)
    with zipfile.ZipFile(out, "a") as marked:
        marked.comment = SECRET.encode()
    passed = hold_app(out.getvalue(), made.kits["A"])
    assert passed == hold_app(content, made.kits["A"])
    assert hold_app(passed.archive, made.kits["A"]) == passed


def test_a_hundred_mutations_of_each_archive_pass_as_they_were_or_not_at_all(made: Submissions) -> None:
    folder = made.write()
    for hold, content in ((hold_app, app_of(folder)), (hold_job, job_of(folder))):
        honest = hold(content, made.kits["A"])
        for number in range(100):
            at = number * len(content) // 100
            hostile = content[:at] + bytes([content[at] ^ (1 << number % 8)]) + content[at + 1 :]
            try:
                assert hold(hostile, made.kits["A"]) == honest
            except Refused:
                continue


# At a site


def request(topic: str, body: object = None, **headers: Any) -> admin_defs.Message:
    made = admin_defs.Message(topic=topic, body=body)
    made.set_headers({RequestHeader.JOB_ID: JOB_ID, **headers})
    return made


FACTS = {"name": "fraud", "submit_time": 1.5, "job_clients": [{"name": "A"}, {"name": "C"}], "status": "RUNNING"}
HELD_FACTS = {
    "job_id": JOB_ID,
    "name": "fraud",
    "submit_time": 1.5,
    "resource_spec": {},
    "job_clients": [{"name": "A"}, {"name": "C"}],
}


def test_a_request_reaches_flare_without_anything_that_is_not_listed(made: Submissions) -> None:
    """Whatever the server says of a job, by every key that FLARE knows."""
    hostile: dict[str, Any] = {key.value: {"A": {"image": "x"}} for key in JobMetaKey} | FACTS
    hostile |= {
        AppValidationKey.BYOC: True,
        "job_clients": [
            {"name": "A", "fqcn": "server.x", "site_config": {"x": "{$HOME}"}},
            *({"name": name} for name in ("C", "server", "../x")),
        ],
    }
    content = app_of(made.write())
    deploy = request(TrainingTopic.DEPLOY, content)
    deploy.set_headers({value: "x" for key, value in vars(RequestHeader).items() if not key.startswith("__")})
    deploy.set_headers({"job_id": JOB_ID, "job_meta": hostile, "__peer_props__": {}})
    deployed = commands.hold_request(deploy, made.kits["A"])
    name = {"name": ADMINISTRATOR, "org": "example_org", "role": "project_admin"}
    assert deployed.headers == {
        "job_id": JOB_ID,
        "app_name": "veilgraph",
        "job_meta": HELD_FACTS,
        "admin_command": "submit_job",
        "require_authz": "true",
        **{header: name[header.strip("_").rpartition("er")[2].lower()] for header in _submitter_headers()},
    }
    assert deployed.body == hold_app(content, made.kits["A"]).archive
    started = commands.hold_request(
        request(TrainingTopic.START_JOB, {"A": "x"}, job_meta=hostile, _resource_reserve_token="ab-1", x=1),
        made.kits["A"],
    )
    assert (started.body, started.headers) == (
        {},
        {"job_id": JOB_ID, "job_meta": HELD_FACTS, "_resource_reserve_token": "ab-1"},
    )
    checked = commands.hold_request(request(TrainingTopic.CHECK_RESOURCE, {"gpu": 1}, peer_ctx="x"), made.kits["A"])
    assert (checked.body, checked.headers) == ({}, {"job_id": JOB_ID})


def _submitter_headers() -> list[str]:
    return [header for names in commands._SUBMITTER for header in names]


@pytest.mark.parametrize(
    "hostile",
    [
        request(TrainingTopic.DEPLOY, b"PK", job_meta=FACTS),
        request(TrainingTopic.START_JOB, {}, job_meta=FACTS),
        request(TrainingTopic.START_JOB, {}, job_meta=FACTS, _resource_reserve_token="{$HOME}"),
        request(TrainingTopic.START_JOB, {}, job_meta=FACTS | {"name": "{$HOME}"}, _resource_reserve_token=""),
        request(TrainingTopic.START_JOB, {}, job_meta=FACTS | {"submit_time": "now"}, _resource_reserve_token=""),
        request(TrainingTopic.START_JOB, {}, job_meta=[], _resource_reserve_token=""),
        request(TrainingTopic.START_JOB, {}, job_meta=FACTS | {"job_clients": 7}, _resource_reserve_token=""),
        request(TrainingTopic.CANCEL_RESOURCE, {}, _resource_reserve_token=["x"]),
        request(TrainingTopic.DELETE_RUN),
        request(TrainingTopic.ABORT, job_id="../startup"),
        None,
        "text",
        SimpleNamespace(),
    ],
)
def test_a_request_that_is_none_is_refused_before_flare_reads_it(
    made: Submissions, hostile: object, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FedAdminAgent, "register_processor", FedAdminAgent.register_processor)
    monkeypatch.setattr(FedAdminAgent, "_dispatch_request", lambda *_: pytest.fail("FLARE read it"))
    commands.limit_site(made.kits["A"])
    reply = FedAdminAgent._dispatch_request(FedAdminAgent.__new__(FedAdminAgent), Message({}, hostile)).payload
    assert reply.body.startswith("refused: ")
    assert "refused the server's request" in caplog.text


# At the server


@pytest.fixture
def server(made: Submissions, monkeypatch: pytest.MonkeyPatch) -> CommandRegister:
    """FLARE's commands as the server registers them; those that go on are told by the test."""
    for kind, name in (
        (CommandRegister, "add_command"),
        (JobCommandModule, "_read_server_job_log"),
        (file_streamer._ChunkConsumer, "consume"),
        (AdminServer, "_process_upload"),
        (AppDeployer, "deploy"),
    ):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    commands.limit_server(made.kits["server"])
    register = CommandRegister(None)
    register.register_module(JobCommandModule())
    register.finalize()
    return register


def submitted(server: CommandRegister, path: Path, *words: str, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, str]:
    """Whether FLARE's own command went on with an uploaded file, and the answer."""
    (entry,) = server.get_command_entries("submit_job")
    gone_on: list[object] = []

    def validate(*given: object) -> tuple[bool, str, dict[str, object]]:
        gone_on.append(given)
        return False, "so far", {}

    monkeypatch.setattr(JobMetaValidator, "validate", validate)
    conn = Connection(props={ConnProps.FILE_LOCATION: str(path), ConnProps.CUSTOM_PROPS: {"x": "{$HOME}"}})
    conn.app_ctx = SimpleNamespace(new_context=nullcontext)
    entry.handler(conn, ["submit_job", *words])
    assert not (gone_on and conn.get_prop(ConnProps.CUSTOM_PROPS))
    return bool(gone_on), str(conn.close())


@pytest.mark.parametrize("form", [*FORMS, *METAS, "honest", "unsigned"])
def test_the_server_validates_what_passed_the_gate_alone(
    made: Submissions,
    server: CommandRegister,
    signed: Signed,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = job_of(made.write(signer=None)) if form == "unsigned" else signed(form)[1]
    path = tmp_path / "upload"
    path.write_bytes(content)
    gone_on, said = submitted(server, path, "job", monkeypatch=monkeypatch)
    assert gone_on == (form == "honest")
    assert ("refused: " in said) == (form != "honest")
    if gone_on:
        assert path.read_bytes() == hold_job(content, made.kits["server"])


@pytest.mark.parametrize("words", [(), ("x",), ("job", "--submit-token", "x"), ("../job",), ("{$HOME}",)])
def test_the_server_takes_one_folder_and_no_options(
    made: Submissions, server: CommandRegister, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "upload"
    path.write_bytes(job_of(made.write()))
    gone_on, said = submitted(server, path, *words, monkeypatch=monkeypatch)
    assert not gone_on
    assert "submit with the same release" in said
    gone_on, said = submitted(server, tmp_path / "none", "job", monkeypatch=monkeypatch)
    assert not gone_on
    assert "no job was uploaded" in said


def test_the_server_deploys_at_itself_what_passes_the_gate(
    made: Submissions, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that was submitted to an older release, too."""
    deployed: list[bytes] = []
    monkeypatch.setattr(AppDeployer, "deploy", lambda deployer, app_data, **_: deployed.append(app_data))
    commands._limit_deployment(made.kits["server"])
    content, _ = signed("honest")
    assert AppDeployer().deploy(app_data=content, app_name="veilgraph") == ""
    assert deployed == [hold_app(content, made.kits["server"]).archive]
    for form in FORMS:
        assert AppDeployer().deploy(app_data=signed(form)[0], app_name="veilgraph").startswith("refused: ")
    assert len(deployed) == 1


@pytest.mark.usefixtures("server")
def test_an_upload_is_bounded_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context: dict[str, Any] = {file_streamer.KEY_FILE_SIZE: 1 << 40}
    upload = file_streamer._ChunkConsumer(context, str(tmp_path))
    data = bytes(MAX_ARCHIVE_BYTES // 2)
    chunk = {file_streamer.KEY_DATA: data, file_streamer.KEY_DATA_SIZE: len(data)}
    for _ in range(2):
        assert upload.consume(chunk, context, None)[0]
    with pytest.raises(Refused) as caught:
        upload.consume({file_streamer.KEY_DATA: b"x", file_streamer.KEY_DATA_SIZE: 1}, context, None)
    assert "at most" in str(caught.value)
    upload.finalize(context, None)
    (left,) = tmp_path.iterdir()
    assert left.stat().st_size <= MAX_ARCHIVE_BYTES
    made = AdminServer.__new__(AdminServer)
    made.logger = logging.getLogger("nvflare")
    monkeypatch.setattr(AdminServer, "_create_conn", lambda *_: pytest.fail("far enough"))
    with pytest.raises(pytest.fail.Exception):
        made._process_upload(context, None)
    assert not list(tmp_path.iterdir())


LOG = f"""2026-01-01 00:00:00,000 - veilgraph - INFO - epoch 3 of at most 9
2026-01-01 00:00:00,000 - veilgraph - INFO - failed {{"kind": "ConfigError"}}
2026-01-01 00:00:00,000 - veilgraph - ERROR - {{"kind": "ConfigError", "message": "{SECRET}"}}
2026-01-01 00:00:00,000 - veilgraph - WARNING - would not take part: {SECRET}
2026-01-01 00:00:00,000 - ServerRunner - INFO - {SECRET}
Traceback (most recent call last):
  {SECRET} - veilgraph - INFO - x
2026-01-01 00:00:00,000 - veilgraph - INFO - two lines
{SECRET}
"""


def test_the_server_tells_administrators_its_news_and_no_error_whole(
    server: CommandRegister, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = server.modules[0]
    monkeypatch.setattr(JobCommandModule, "_read_live_server_job_log", lambda *_: LOG)
    text = told._read_server_job_log(SimpleNamespace(app_ctx=None), JOB_ID)
    assert SECRET not in text
    assert [line.rpartition(" - ")[2] for line in text.splitlines()] == [
        "epoch 3 of at most 9",
        'failed {"kind": "ConfigError"}',
        "two lines",
    ]
    monkeypatch.setattr(JobCommandModule, "_read_live_server_job_log", lambda *_: None)
    monkeypatch.setattr(JobCommandModule, "_read_stored_server_job_log", lambda *_: None)
    assert told._read_server_job_log(SimpleNamespace(app_ctx=None), JOB_ID) is None


def test_no_other_log_is_handed_out(server: CommandRegister) -> None:
    (entry,) = server.get_command_entries("get_job_log")
    assert entry.handler.func is commands._get_log
    asked: list[list[str]] = []
    commands._get_log(lambda conn, args: asked.append(args), None, ["get_job_log", JOB_ID, "A", "log.json"])
    assert asked == [["get_job_log", JOB_ID]]


def test_every_work_has_a_request() -> None:
    for work in (*SiteWork.__args__, "check"):  # type: ignore[attr-defined]
        assert decode_request(encode_request({}, work, resume=True)) == ({}, work, True)


def test_the_two_trees_have_every_file_of_a_submission(made: Submissions) -> None:
    folder = made.write()
    found = sorted(path.relative_to(folder.parent).as_posix() for path in folder.rglob("*") if path.is_file())
    assert found == sorted(archive._paths(archive.JOB_TREE))
