"""What an administrator asks of sites, and what a site answers: one signed message each, in one exact form.

    magic                            4s             b"VREQ" of a request, b"VANS" of an answer
    body, certificate, signature     3 × u32        bytes of each
    body                             canonical JSON
    certificate                      PEM of the signer
    signature                        over the magic and the body (``Identity.sign``)

Nothing of a body is read before its signature has been checked. A request says for which project and which sites it
is, and until when: whoever carries it can neither change it, nor give it to others, nor keep it for later. A second
one with the same id starts nothing (``deploy.supervisor``). An answer names the request that it is for.
"""

from __future__ import annotations

import json
import secrets
import struct
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, Field, model_validator

from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.files import os_errors_as
from veilgraph.core.settings import Exact
from veilgraph.core.types import PartyId
from veilgraph.link.channel import length_prefixed
from veilgraph.link.identity import BACKDATED, Identity, Trust

MAX_BODY_BYTES: Final = 256 << 10
VALID_S: Final = 600.0
"""How long a request may be on its way."""
_MAX_CERTIFICATE_BYTES: Final = 16 << 10
_MAX_SIGNATURE_BYTES: Final = 2 << 10
_HEAD: Final = struct.Struct("<4sIII")
_REQUEST, _ANSWER = b"VREQ", b"VANS"

_Said = TypeVar("_Said", bound=BaseModel)
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Moment = Annotated[int, Field(ge=0, le=2**40)]


class Request(Exact):
    """What an administrator asks.

    Attributes:
        id: a number used once; that of the job where it submits one.
        sites: whom it is for.
        expires: seconds since 1970.
        ask: what for. ``run`` and ``check`` submit a job, ``stop`` ends one, ``status`` asks how jobs are, ``log`` for
        what a job's log tells administrators.
        about: id of a job, for ``stop`` and ``log``.
        job: settings as in a job file, for ``run``; validated by the party's process alone.
        work: for ``run``; ``check`` begins nothing: each site answers whether it would take part.
        resume: go on with a run that was cut off.
    """

    version: Literal[1] = 1
    id: _Id = Field(default_factory=lambda: secrets.token_hex(16))
    project: _Name
    sites: Annotated[list[_Name], Field(min_length=1, max_length=64)]
    expires: _Moment
    ask: Literal["run", "stop", "status", "log"]
    about: _Id | Literal[""] = ""
    job: dict[str, Any] | None = None
    work: Literal["", "train", "align", "predict", "answer", "audit", "check"] = ""
    resume: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.ask == "run") != (self.job is not None and self.work != ""):
            raise ValueError("a job and its work are for run alone")
        if (self.ask in ("stop", "log")) != (self.about != "") or (self.resume and self.ask != "run"):
            raise ValueError("names a job that it cannot be about")
        return self

    def signed(self, administrator: Identity) -> bytes:
        """The signed message, as it is sent; raises ``ConfigError``: the job is too long."""
        return _sign_message(_REQUEST, self, administrator)


class Answer(Exact):
    """What a site answers to a request, by its id; ``refuses``: why it does not do what it is asked."""

    request: _Id
    site: _Name
    refuses: Annotated[str, Field(max_length=1000)] = ""
    content: dict[str, Any] = Field(default_factory=dict)

    def signed(self, site: Identity) -> bytes:
        """The signed message, as it is sent."""
        return _sign_message(_ANSWER, self, site)


def expiry(now: datetime) -> int:
    """When a request that is made ``now`` expires, in seconds since 1970."""
    return int((now + timedelta(seconds=VALID_S)).timestamp())


def read_request(
    message: bytes | memoryview, trust: Callable[[], Trust], project: str, site: PartyId, now: datetime
) -> tuple[Request, str]:
    """Verify and read a request to this site; return it, and the name of the administrator who signed it.

    ``trust`` is called only for what has the form of a request. Raises ``ProtocolError``: says which check failed.
    """
    body, certificate, signature = _split_message(_REQUEST, message)
    administrator = trust().administrator(certificate, signature, length_prefixed(_REQUEST, body), now)
    request = _parse_body(Request, body)
    if request.project != project or site not in request.sites:
        raise ProtocolError(f"it is for {', '.join(request.sites)} of project {request.project!r}", code="not-for-here")
    left_s, until = request.expires - now.timestamp(), request.expires
    if left_s < 0:
        raise ProtocolError(f"it expired {-left_s:.0f} s ago; compare the clocks", code="expired", value=until)
    if left_s > VALID_S + BACKDATED.total_seconds():
        raise ProtocolError(f"it is valid for {left_s:.0f} s more; compare the clocks", code="not-yet", value=until)
    return request, administrator


def stored_request(path: Path) -> Request:
    """Read a kept request, unverified this time; ``ConfigError``: unreadable; ``ProtocolError``: it is no request."""
    with os_errors_as(ConfigError, f"{path}: cannot be read", "submit the job again"):
        content = path.read_bytes()
    return _parse_body(Request, _split_message(_REQUEST, content)[0])


def read_answer(message: bytes | memoryview, trust: Trust, request: Request, site: PartyId, now: datetime) -> Answer:
    """Verify and read a site's answer to ``request``; raises ``ProtocolError``: says which check failed."""
    body, certificate, signature = _split_message(_ANSWER, message)
    trust.check(site, certificate, signature, length_prefixed(_ANSWER, body), now)
    answer = _parse_body(Answer, body)
    if answer.request != request.id or answer.site != site:
        raise ProtocolError("it is the answer to another request", code="other-request", party=site)
    return answer


def _sign_message(magic: bytes, said: BaseModel, identity: Identity) -> bytes:
    """Frame the canonical JSON of ``said``, the signer's certificate and signature; ``ConfigError``: too long."""
    body = _canonical_json(said)
    if len(body) > MAX_BODY_BYTES:
        words = f"job: {len(body)} bytes as it is sent, at most {MAX_BODY_BYTES} are allowed; shorten its lists"
        raise ConfigError(words, code="too-long", value=len(body))
    parts = body, identity.certificate_pem, identity.sign(length_prefixed(magic, body))
    return _HEAD.pack(magic, *map(len, parts)) + b"".join(parts)


def _split_message(magic: bytes, message: bytes | memoryview) -> tuple[bytes, bytes, bytes]:
    """Body, certificate and signature, each within its bound; nothing else is in the message."""
    limits = MAX_BODY_BYTES, _MAX_CERTIFICATE_BYTES, _MAX_SIGNATURE_BYTES
    if not _HEAD.size <= len(message) <= _HEAD.size + sum(limits):
        raise ProtocolError(f"a message of {len(message)} bytes", code="request-size", value=len(message))
    found, *sizes = _HEAD.unpack_from(message)
    if found != magic or len(message) != _HEAD.size + sum(sizes) or any(map(int.__gt__, sizes, limits)):
        raise ProtocolError("it has not the form of a request or an answer of this release", code="request-form")
    rest = bytes(message[_HEAD.size :])
    body, certificate, _ = sizes
    return rest[:body], rest[body : body + certificate], rest[body + certificate :]


def _parse_body(kind: type[_Said], body: bytes) -> _Said:
    """Parse a body; ``ProtocolError`` unless it is canonical JSON of this ``kind``."""
    try:
        said = kind.model_validate_json(body)
        if _canonical_json(said) == body:
            return said
    except (ValueError, RecursionError):
        pass
    raise ProtocolError("its content is not of this release; install one release everywhere", code="request-content")


def _canonical_json(said: BaseModel) -> bytes:
    content = said.model_dump(mode="json")
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
