"""The one form of a submitted job: fixed files around one opaque request.

FLARE expands variables of the environment and of the configuration in every string that it reads, and parses several
formats. So all that varies in a job is base64 text, in which FLARE finds nothing to expand. Every other byte is fixed.
``guard.archive`` holds submissions to this form before FLARE reads them.
"""

from __future__ import annotations

import binascii
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import NAME_PATTERN
from veilgraph.core.types import SERVER, PartyId

ALLOWED_CLASSES: Final = ("veilgraph.deploy.engine.PartyExecutor", "veilgraph.deploy.engine.ServerController")
"""All that a submitted job can make a site run: installed code, chosen by name, given settings."""
TASK: Final = "veilgraph"
"""FLARE's name for a party's part of a job."""
CHECK: Final = "check"
"""Work of a job that is submitted only to learn whether sites would take part; ``runtime.launch.site`` answers it."""
CHECKS: Final = " (check)"
"""After the name of such a job."""

FOLDER: Final = "job"
"""Top folder of a submission."""
APP: Final = "veilgraph"
"""FLARE's name for the part of a submission that every site gets."""
META: Final = "meta.json"
CLIENT_CONFIG: Final = "config_fed_client.json"
SERVER_CONFIG: Final = "config_fed_server.json"

MAX_REQUEST_CHARACTERS: Final = 1 << 16
_REQUEST: Final = re.compile(rf"[A-Za-z0-9+/]{{1,{MAX_REQUEST_CHARACTERS - 2}}}={{0,2}}")
_JOB_NAME: Final = re.compile(rf"{NAME_PATTERN.removesuffix('$')}(?:{re.escape(CHECKS)})?")
_SITE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")

_SITE, _SERVER = ALLOWED_CLASSES


class Request(NamedTuple):
    """What an administrator asks of the sites."""

    job: dict[str, Any]
    """Settings, as in a job file; not validated yet."""
    work: str
    resume: bool


def encode_request(job: Mapping[str, Any], work: str, *, resume: bool) -> str:
    """Return the request as base64 of canonical JSON.

    Raises:
        ConfigError: it is too long.
    """
    text = b64encode(_canonical({"job": dict(job), "work": work, "resume": resume})).decode("ascii")
    if len(text) > MAX_REQUEST_CHARACTERS:
        raise ConfigError(
            f"job: {len(text)} characters as it is submitted, and at most {MAX_REQUEST_CHARACTERS} are allowed; "
            "shorten its lists"
        )
    return text


def decode_request(text: object) -> Request:
    """Read what ``encode_request`` wrote; no other text of the same content is accepted.

    Raises:
        ConfigError: it is none.
    """
    try:
        if isinstance(text, str) and _REQUEST.fullmatch(text):
            content = b64decode(text, validate=True)
            found = json.loads(content)
            job, work, resume = found["job"], found["work"], found["resume"]
            types = isinstance(job, dict) and isinstance(work, str) and isinstance(resume, bool)
            if types and len(found) == len(Request._fields) and text == encode_request(job, work, resume=resume):
                return Request(job, work, resume)
    except (binascii.Error, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ConfigError("the submitted job is no request of this release; submit with the same release")


def config_files(request: str) -> dict[str, bytes]:
    """Name → content of the two files in which FLARE looks for the classes to build, and their only argument."""
    arguments = {"request": request}
    server = {"workflows": [{"id": APP, "path": _SERVER, "args": arguments}]}
    client = {"executors": [{"tasks": [TASK], "executor": {"path": _SITE, "args": arguments}}]}
    return {
        name: _canonical({"format_version": 2, "components": [], **content})
        for name, content in ((SERVER_CONFIG, server), (CLIENT_CONFIG, client))
    }


def meta_file(name: str, sites: Sequence[PartyId]) -> bytes:
    """Content of the file in which FLARE looks for the job's name and sites.

    All sites are needed but for a check, which asks those that it can.

    Raises:
        ConfigError: the name or a site's is malformed.
    """
    if not _JOB_NAME.fullmatch(name) or not all(map(_SITE_NAME.fullmatch, sites)):
        raise ConfigError(f"name={name!r}, sites={list(sites)}: letters, digits, '-' and '_' are allowed; rename it")
    needed = [] if name.endswith(CHECKS) else list(sites)
    return _canonical(
        {
            "name": name,
            "resource_spec": {},
            "deploy_map": {APP: [SERVER, *sites]},
            "min_clients": max(1, len(needed)),
            "mandatory_clients": needed,
        }
    )


def submission_files(job: Mapping[str, Any], work: str, *, resume: bool, sites: Sequence[PartyId]) -> dict[str, bytes]:
    """Path below ``FOLDER`` → content of a submission's files, before they are signed."""
    name = str(job["name"]) + (CHECKS if work == CHECK else "")
    configs = config_files(encode_request(job, work, resume=resume))
    return {META: meta_file(name, sites)} | {f"{APP}/config/{file}": content for file, content in configs.items()}


def is_app(files: Mapping[str, bytes]) -> bool:
    """Whether these are ``config_files`` of some request, byte for byte."""
    head, tail = config_files("\n")[CLIENT_CONFIG].split(rb"\n")
    content = files[CLIENT_CONFIG]
    request = content[len(head) : len(content) - len(tail)].decode("ascii", errors="replace")
    return _REQUEST.fullmatch(request) is not None and files == config_files(request)


def is_meta(content: bytes) -> bool:
    """Whether it is ``meta_file`` of some name and sites, byte for byte."""
    found = json.loads(content)
    return content == meta_file(found["name"], found["deploy_map"][APP][1:])


def is_job_name(text: object) -> bool:
    """Whether a job, or a check of it, may be called that."""
    return isinstance(text, str) and _JOB_NAME.fullmatch(text) is not None


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
