"""Signed requests of administrators: in one form, for one project, some sites and ten minutes."""

import json
import random
import struct
from contextlib import nullcontext
from datetime import timedelta

import pytest

from tests.errors import refused
from tests.link.certificates import DAY, NOW, Project
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.deploy.request import VALID_S, Answer, Request, expiry, read_answer, read_request
from veilgraph.link.channel import length_prefixed
from veilgraph.link.identity import ADMINISTRATOR, Identity, Trust

PROJECT, OTHER = Project(), Project()
OPS, BANK, SHOP = PROJECT.identity("ops@example.org", role=ADMINISTRATOR), *map(PROJECT.identity, ("bank", "shop"))
JOB = {"name": "fraud", "train": {"epochs": 3}, "ü": [1.5, None, True]}


def request(**changed) -> Request:
    fields = {"project": "cards", "sites": ["bank", "shop"], "expires": expiry(NOW), "ask": "run", "job": JOB}
    return Request.model_validate({**fields, "work": "train", **changed})


def read(message: bytes | memoryview, now=NOW, site: str = "bank", project: str = "cards") -> tuple[Request, str]:
    return read_request(message, lambda: Trust((PROJECT.root,)), project, site, now)


def enveloped(body: bytes, signer: Identity = OPS, magic: bytes = b"VREQ") -> bytes:
    parts = body, signer.certificate_pem, signer.sign(length_prefixed(magic, body))
    return struct.pack("<4sIII", magic, *map(len, parts)) + b"".join(parts)


def body_of(message: bytes) -> bytes:
    return message[16 : 16 + struct.unpack_from("<I", message, 4)[0]]


def test_a_request_arrives_as_it_was_made() -> None:
    made = request()
    assert read(made.signed(OPS)) == (made, "ops@example.org")
    assert read(made.signed(OPS), site="shop")[0].job == JOB
    assert made.id != request().id
    for ask, about in (("status", ""), ("log", "0" * 32), ("stop", "0" * 32)):
        made = request(ask=ask, about=about, job=None, work="")
        assert read(made.signed(OPS))[0] == made
    assert read(memoryview(enveloped(body_of(made.signed(OPS)))))[0] == made, "what the attacks below begin with"


OLD = PROJECT.identity("ops@example.org", start=NOW - 3 * DAY, end=NOW - DAY, role=ADMINISTRATOR)


@pytest.mark.parametrize(
    ("signer", "changed", "code"),
    [
        (BANK, {}, "no-administrator"),
        (PROJECT.identity("x", role="member"), {}, "no-administrator"),
        (PROJECT.identity(None, role=ADMINISTRATOR), {}, "no-administrator"),
        (OTHER.identity("ops@example.org", role=ADMINISTRATOR), {}, "other-project"),
        (Identity(OPS.certificate, BANK.key, OPS.roots), {}, "signature"),
        (OLD, {}, "expired"),
        (OPS, {"project": "loans"}, "not-for-here"),
        (OPS, {"sites": ["shop"]}, "not-for-here"),
    ],
)
def test_only_administrators_ask_and_for_this_site(signer: Identity, changed: dict[str, object], code: str) -> None:
    with refused(ProtocolError, code=code):
        read(request(**changed).signed(signer))


@pytest.mark.parametrize(
    ("late_s", "code"),
    [(-3600.0, ""), (0.0, ""), (VALID_S - 2, ""), (VALID_S + 2, "expired"), (-3 * 86400.0, "not-yet")],
)
def test_a_request_is_for_ten_minutes_and_clocks_may_be_off_by_hours(late_s: float, code: str) -> None:
    """A certificate that is valid at all of these times."""
    ops = PROJECT.identity("ops@example.org", start=NOW - 9 * DAY, end=NOW + 9 * DAY, role=ADMINISTRATOR)
    roots = (Project(PROJECT.key, NOW - 9 * DAY, NOW + 9 * DAY).root,)
    message, now = request().signed(ops), NOW + timedelta(seconds=late_s)
    with refused(ProtocolError, code=code) if code else nullcontext():
        read_request(message, lambda: Trust(roots), "cards", "bank", now)


def test_whatever_is_changed_is_refused_and_nothing_else_is_raised() -> None:
    message, draw = request().signed(OPS), random.Random(3)
    for _ in range(400):
        changed = bytearray(message)
        for _ in range(draw.choice((1, 1, 3))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        cut = bytes(changed)[: draw.choice((None, None, draw.randrange(len(changed))))]
        try:
            found, _ = read(cut)
        except ProtocolError:
            continue
        assert found == request(id=found.id), "a change of the PEM's own line breaks, at most"
    for junk in (b"", b"VREQ", message + b"x", message[:-1], b"VANS" + message[4:], bytes(600_000)):
        with pytest.raises(ProtocolError):
            read(junk)


@pytest.mark.parametrize(
    "change",
    [
        lambda found: {**found, "more": 1},
        lambda found: {name: value for name, value in found.items() if name != "ask"},
        lambda found: {**found, "ask": "shell"},
        lambda found: {**found, "resume": 1},
        lambda found: {**found, "id": "../../etc/passwd"},
        lambda found: {**found, "id": found["id"].upper().replace("0", "A")},
        lambda found: {**found, "job": None},
        lambda found: {**found, "ask": "status"},
        lambda found: {**found, "about": "0" * 32},
        lambda found: {**found, "expires": float("inf")},
        lambda found: {**found, "sites": []},
        lambda found: {**found, "version": 2},
        lambda found: [found],
    ],
)
def test_an_administrators_other_content_is_refused(change) -> None:
    body = json.dumps(change(json.loads(body_of(request().signed(OPS)))), sort_keys=True, separators=(",", ":"))
    with refused(ProtocolError, code="request-content"):
        read(enveloped(body.encode()))


def test_there_is_one_form_of_each_content() -> None:
    body = body_of(request().signed(OPS))
    nested = b'{"job":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for other in (b" " + body, body.replace(b'{"about"', b'{"about":"","about"', 1), body[:-1], nested, b"9" * 10_000):
        assert other != body
        with refused(ProtocolError, code="request-content"):
            read(enveloped(other))
    read(enveloped(body))


def test_what_is_too_long_is_not_sent() -> None:
    with refused(ConfigError, code="too-long"):
        request(job={"x": "y" * 300_000}).signed(OPS)


def test_an_answer_is_the_sites_own_and_to_this_request() -> None:
    asked = request()
    made = Answer(request=asked.id, site="bank", content={"jobs": [{"state": "running"}]})

    def answer(message: bytes, to: Request = asked) -> Answer:
        return read_answer(message, Trust((PROJECT.root,)), to, "bank", NOW)

    assert answer(made.signed(BANK)) == made
    for message, to, code in (
        (made.signed(SHOP), asked, "other-name"),
        (made.signed(OPS), asked, "administrator"),
        (made.signed(BANK), request(), "other-request"),
        (Answer(request=asked.id, site="shop").signed(BANK), asked, "other-request"),
        (asked.signed(BANK), asked, "request-form"),
    ):
        with refused(ProtocolError, code=code):
            answer(message, to)
    with refused(ProtocolError, code="request-form"):
        read(made.signed(OPS))
    with refused(ProtocolError, code="signature"):
        read(b"VREQ" + enveloped(body_of(asked.signed(OPS)), magic=b"VANS")[4:])
