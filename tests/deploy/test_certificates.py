"""A participant's own key: requested, signed, installed; and what is refused on the way."""

import ast
import shutil
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

import veilgraph
from tests.deploy.self_signed import self_signed
from tests.deploy.small_project import bank_and_shop
from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.files import locked
from veilgraph.deploy.authority import Authority, read_certificate, revoke
from veilgraph.deploy.certificates import admit_certificate, install_certificate, request_certificate, sign_certificate
from veilgraph.deploy.key_file import Certified, KeyFile
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.revocation import LIST_FILE
from veilgraph.link.identity import BACKDATED

NOW = datetime.now(UTC) - timedelta(hours=23)
"""A clock that is 23 hours behind the one of provisioning: everything here works with it."""


@pytest.fixture
def consortium(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "consortium"))


def kit(consortium: Path, name: str) -> Kit:
    return Kit.open(consortium / "kits" / name)


def renew(consortium: Path, name: str, folder: Path, now: datetime = NOW, days: int = 360) -> Path:
    asked = request_certificate(kit(consortium, name), folder / f"{name}.csr")
    signed = sign_certificate(folder / f"{name}.csr", consortium / "authority", folder / f"{name}.crt", now, days)
    assert signed.sha256 == asked.sha256
    return folder / f"{name}.crt"


def test_every_kit_knows_who_may_be_whom(consortium: Path) -> None:
    """By the certificates that provisioning makes; the server's has its host's name."""
    names = ("server", "bank", "shop", "ops@example.org")
    identities = {name: kit(consortium, name).identity() for name in names}
    for verifier in names:
        assert identities[verifier].server_name == "localhost"
        for claimed in (*names, "localhost"):
            for signer in names:
                one = identities[signer]
                check = partial(identities[verifier].verify_peer, claimed, one.certificate_pem, one.sign(b"said"))
                if claimed == signer != "ops@example.org":
                    check(b"said", datetime.now(UTC))
                else:
                    with pytest.raises(ProtocolError, match="certificate is"):
                        check(b"said", datetime.now(UTC))


@pytest.mark.parametrize("name", ["server", "bank", "ops@example.org"])
def test_an_own_key_takes_the_place_of_the_provisioned_one(consortium: Path, tmp_path: Path, name: str) -> None:
    stem = "server" if name == "server" else "client"
    startup = consortium / "kits" / name / "startup"
    old_key, old = (startup / f"{stem}.key").read_bytes(), (startup / f"{stem}.crt").read_bytes()
    before = x509.load_pem_x509_certificate(old)
    certificate = renew(consortium, name, tmp_path)
    assert (startup / f"{stem}.key").read_bytes() == old_key, "the old key is in use until the new one is certified"
    until = install_certificate(kit(consortium, name), certificate, NOW)
    after = x509.load_pem_x509_certificate((startup / f"{stem}.crt").read_bytes())
    assert after.subject == before.subject
    assert [each.oid for each in after.extensions] == [each.oid for each in before.extensions]
    assert after.public_key() != before.public_key()
    assert (until - NOW).days in (359, 360)
    assert not (startup / "new.key").exists()
    key = (startup / f"{stem}.key").read_bytes()
    assert not [path for path in (consortium / "authority").rglob("*") if path.is_file() and key in path.read_bytes()]


def test_a_peer_believes_the_renewed_certificate_and_no_other_name(consortium: Path, tmp_path: Path) -> None:
    before = kit(consortium, "bank").identity()
    install_certificate(kit(consortium, "bank"), renew(consortium, "bank", tmp_path), NOW)
    bank, shop = kit(consortium, "bank").identity(), kit(consortium, "shop").identity()
    later = NOW + timedelta(minutes=1)
    for one in (bank, before):  # the shop has not changed, and needs not know which of the two is in use
        shop.verify_peer("bank", one.certificate_pem, one.sign(b"x"), b"x", later)
        one.verify_peer("shop", shop.certificate_pem, shop.sign(b"y"), b"y", later)
    with refused(ProtocolError, code="other-name", party="shop"):
        shop.verify_peer("shop", bank.certificate_pem, bank.sign(b"x"), b"x", later)


def test_every_certificate_and_list_begins_a_day_before_its_making(consortium: Path, tmp_path: Path) -> None:
    """The attack on availability: a party whose clock is a minute behind refused root, kits, renewals and lists."""
    made = datetime.now(UTC)
    renewed = renew(consortium, "bank", tmp_path, now=made)
    paths = [renewed, *consortium.rglob("*.crt"), *consortium.rglob("*.pem")]
    found = [x509.load_pem_x509_certificate(path.read_bytes()) for path in paths]
    assert len(found) >= 11
    for path, one in zip(paths, found, strict=True):
        age = made - one.not_valid_before_utc
        assert BACKDATED - timedelta(minutes=10) < age < BACKDATED + timedelta(minutes=10), path
    days = {round((one.not_valid_after_utc - made) / timedelta(days=1)) for one in found}
    assert days == {360, 3650}, "the time to the end is as it was"
    revoke(Authority(consortium / "authority"), "shop", made)
    crl = x509.load_pem_x509_crl((consortium / "authority" / LIST_FILE).read_bytes())
    assert crl.last_update_utc == (made - BACKDATED).replace(microsecond=0)


def test_no_other_code_makes_certificates_or_lists_that_begin_now() -> None:
    """A new maker of certificates appears here, and has to backdate them."""
    beginnings = {"not_valid_before", "last_update"}
    for path in Path(veilgraph.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in beginnings:
                assert ast.unparse(call.args[0]) == "now - BACKDATED", f"{path}:{call.lineno}"


def test_only_the_projects_participants_are_signed(consortium: Path, tmp_path: Path) -> None:
    bank_and_shop(tmp_path / "other", holders=["bank", "telecom"])
    request_certificate(kit(tmp_path / "other", "telecom"), tmp_path / "telecom.csr")
    with refused(DataError, key=tmp_path / "telecom.csr"):
        sign_certificate(tmp_path / "telecom.csr", consortium / "authority", tmp_path / "telecom.crt", NOW)
    assert not (tmp_path / "telecom.crt").exists()
    foreign = renew(tmp_path / "other", "bank", tmp_path)  # the same name, another authority
    request_certificate(kit(consortium, "bank"), tmp_path / "again.csr")
    with pytest.raises(DataError, match="is not for the key that this kit requested it for"):
        install_certificate(kit(consortium, "bank"), foreign, NOW)
    other, own = (root / "kits" / "bank" / "startup" / "new.key" for root in (tmp_path / "other", consortium))
    shutil.copy(other, own)
    with pytest.raises(DataError, match="is of another project"):
        install_certificate(kit(consortium, "bank"), foreign, NOW)


def test_what_does_not_fit_is_not_installed(consortium: Path, tmp_path: Path) -> None:
    bank = kit(consortium, "bank")
    with pytest.raises(ConfigError, match="cannot be read"):
        install_certificate(bank, tmp_path / "none.crt", NOW)
    certificate = renew(consortium, "bank", tmp_path, days=3)
    with pytest.raises(DataError, match="compare the clocks, or have it signed anew"):
        install_certificate(bank, certificate, NOW + timedelta(days=4))
    request_certificate(bank, tmp_path / "newer.csr")
    with pytest.raises(DataError, match="sign the newest request"):
        install_certificate(bank, certificate, NOW)
    certificate = renew(consortium, "bank", tmp_path)
    with locked(bank.path, "held"), pytest.raises(RunError, match="stop its site first"):
        install_certificate(bank, certificate, NOW)
    install_certificate(bank, certificate, NOW)


@pytest.mark.parametrize("content", [b"", b"no request", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n", None])
def test_damaged_or_changed_requests_are_refused(consortium: Path, tmp_path: Path, content: bytes | None) -> None:
    words = "is no certificate request"
    if content is None:  # the bank asks for the shop's name
        request_certificate(kit(consortium, "bank"), tmp_path / "bank.csr")
        raw = x509.load_pem_x509_csr((tmp_path / "bank.csr").read_bytes()).public_bytes(Encoding.DER)
        content = x509.load_der_x509_csr(raw.replace(b"bank", b"shop", 1)).public_bytes(Encoding.PEM)
        words = "is not signed with its own key"
    (tmp_path / "bad.csr").write_bytes(content)
    with pytest.raises(DataError, match=words):
        sign_certificate(tmp_path / "bad.csr", consortium / "authority", tmp_path / "out.crt", NOW)


def test_the_broker_lets_in_a_renewed_certificate_once_the_server_has_it(consortium: Path, tmp_path: Path) -> None:
    server, now = kit(consortium, "server"), datetime.now(UTC)
    renewed, before = renew(consortium, "bank", tmp_path), server.broker_configuration(now)
    assert admit_certificate(kit(consortium, "bank"), renewed) is None, "the bank's own affair"
    assert admit_certificate(server, renewed) == "bank"
    assert len(server.broker_configuration(now)) > len(before)
    certificate, _ = self_signed("bank", tmp_path / "tls")
    with refused(DataError, key=certificate):
        admit_certificate(server, certificate)
    revoke(Authority(consortium / "authority"), "bank", now)
    shutil.copy(consortium / "authority" / LIST_FILE, server.path / "startup" / LIST_FILE)
    assert len(server.broker_configuration(now)) < len(before), "both of the bank's are gone"


def agreed(tls: ssl.SSLContext, kit_of_broker: Kit, own: Certified) -> bool:
    """Whether a participant takes what shows a broker's certificate for its broker, and shows its own."""
    there = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    there.load_cert_chain(own.certificate, own.key.plain)
    there.load_verify_locations(kit_of_broker.path / "startup" / "rootCA.pem")
    there.verify_mode = ssl.CERT_REQUIRED
    to_broker, to_participant = ssl.MemoryBIO(), ssl.MemoryBIO()
    participant = tls.wrap_bio(to_participant, to_broker, server_hostname="localhost")
    broker = there.wrap_bio(to_broker, to_participant, server_side=True)
    done = 0
    for _ in range(4):
        for end in (participant, broker):
            try:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
                    done += 1
            except ssl.SSLCertVerificationError:
                return False
    return done >= 2


def test_a_brokers_stolen_key_is_worth_nothing_once_the_brokers_root_is_new(consortium: Path, tmp_path: Path) -> None:
    """As docs/guides/deployment.md has it: without a new project, new certificates of participants or code."""
    server = kit(consortium, "server")
    stolen = Certified(tmp_path / "stolen.crt", KeyFile(tmp_path, "stolen"), server.broker.root)
    shutil.copy(server.broker.certificate, stolen.certificate)
    shutil.copy(server.broker.key.plain, stolen.key.plain)
    assert agreed(kit(consortium, "bank").brokers().tls, server, stolen), "the control"

    bank_and_shop(tmp_path / "fresh")
    fresh = tmp_path / "fresh"
    for name in ("brokersCA.pem", "brokersCA.key"):
        shutil.copy(fresh / "authority" / name, consortium / "authority" / name)
    for each in (consortium / "kits").iterdir():
        shutil.copy(fresh / "authority" / "brokersCA.pem", each / "startup" / "brokersCA.pem")
    for name in ("broker.crt", "broker.key"):
        shutil.copy(fresh / "kits" / "server" / "broker" / name, server.path / "broker" / name)
    for name in ("bank", "ops@example.org", "server"):
        tls = kit(consortium, name).brokers().tls
        assert not agreed(tls, server, stolen)
        assert agreed(tls, server, server.broker), "its new certificate"
        kit(consortium, name).identity()
    number = read_certificate(server.broker.certificate).serial_number
    assert f"{number:x}" in server.broker_configuration(datetime.now(UTC)), "a running broker takes it"

    asked = request_certificate(server, tmp_path / "broker.csr", broker=True)
    signed = sign_certificate(tmp_path / "broker.csr", consortium / "authority", tmp_path / "broker.crt", NOW)
    assert asked == signed, "it is renewed as ever"
    install_certificate(server, tmp_path / "broker.crt", NOW)
    assert agreed(kit(consortium, "bank").brokers().tls, server, server.broker)
    assert not agreed(kit(consortium, "bank").brokers().tls, server, stolen)
