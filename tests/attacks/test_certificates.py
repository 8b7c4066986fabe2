"""A thief of a kit, and whoever would change, hold back or roll back the list of revoked certificates."""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from tests.errors import refused
from tests.link.certificates import Project
from tests.link.sealing import outcomes, pair
from veilgraph.core.errors import ConfigError, DataError, LinkError, ProtocolError, RunError
from veilgraph.deploy.authority import Authority, revoke
from veilgraph.deploy.certificates import install_certificate, request_certificate, sign_certificate
from veilgraph.deploy.kit import Kit, SiteFile
from veilgraph.deploy.part import accept_revocation_list
from veilgraph.deploy.revocation import LIST_FILE, accept_newer, install_list, installed_list
from veilgraph.link import identity as lists
from veilgraph.link.identity import MAX_LIST_BYTES, Identity, RevocationList

NOW = datetime.now(UTC) + timedelta(minutes=1)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")


@pytest.fixture
def consortium(provisioned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(provisioned, tmp_path / "consortium"))


@pytest.fixture
def stolen(consortium: Path, tmp_path: Path) -> Kit:
    """The bank's kit as a thief copied it."""
    return Kit.open(Path(shutil.copytree(consortium / "kits" / "bank", tmp_path / "stolen")))


def kit(consortium: Path, name: str) -> Kit:
    return Kit.open(consortium / "kits" / name)


def authority(consortium: Path) -> Authority:
    return Authority(consortium / "authority")


def renew(consortium: Path, name: str, folder: Path) -> None:
    now = datetime.now(UTC) + timedelta(seconds=1)
    request_certificate(kit(consortium, name), folder / "new.csr")
    sign_certificate(folder / "new.csr", consortium / "authority", folder / "new.crt", now)
    install_certificate(kit(consortium, name), folder / "new.crt", now)


def handshake(bank: Identity, shop: Identity) -> list[str | None]:
    """What the bank and the shop say of each other, over a link that neither of them owns."""
    said = outcomes(pair(bank=bank, shop=shop)[:2])
    return [None if one is None else str(one) for one in said]


def crl(
    consortium: Path,
    number: int | None = 9,
    serials: Sequence[int] = (),
    extensions: Sequence[tuple[x509.ExtensionType, bool]] = (),
    of_entries: Sequence[tuple[x509.ExtensionType, bool]] = (),
    key: Path | None = None,
    issuer: x509.Name | None = None,
    start: datetime = NOW,
) -> bytes:
    """A list by hand, signed with the root's key unless another is given."""
    signing = load_pem_private_key((key or consortium / "authority" / "rootCA.key").read_bytes(), None)
    builder = x509.CertificateRevocationListBuilder(
        issuer or authority(consortium).root().subject, start, start + timedelta(days=9)
    )
    for extension, critical in (*extensions, *([] if number is None else [(x509.CRLNumber(number), False)])):
        builder = builder.add_extension(extension, critical)
    for serial in serials:
        entry = x509.RevokedCertificateBuilder(serial, NOW)
        for extension, critical in of_entries:
            entry = entry.add_extension(extension, critical)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(signing, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]


def test_a_thief_is_let_in_until_the_list_is_here_and_not_after(consortium: Path, stolen: Kit) -> None:
    assert handshake(stolen.identity(), kit(consortium, "shop").identity()) == [None, None]
    made, certificates = revoke(authority(consortium), "bank", NOW)
    install_list(kit(consortium, "shop").path, authority(consortium).list_path)
    shop = kit(consortium, "shop").identity()
    told, refused = handshake(stolen.identity(), shop)
    serial = stolen.identity().certificate.serial_number
    assert refused is not None
    assert refused.startswith(f"bank's certificate (serial {serial:x}) was revoked on {NOW:%Y-%m-%d}; its owner makes")
    assert told is not None
    assert "shop refused bank's handshake: " in told
    assert [one.serial_number for one in certificates] == [serial]
    assert (made.number, set(made.revoked)) == (1, {serial})
    assert handshake(stolen.identity(), replace(shop, revoked=None)) == [None, None], "it is the list that refuses"


def test_who_was_robbed_comes_back_with_a_new_key_and_the_thief_does_not(
    consortium: Path, stolen: Kit, tmp_path: Path
) -> None:
    revoke(authority(consortium), "bank", NOW)
    renew(consortium, "bank", tmp_path)
    for name in ("bank", "shop"):
        install_list(kit(consortium, name).path, authority(consortium).list_path)
    shop = kit(consortium, "shop").identity()
    assert handshake(kit(consortium, "bank").identity(), shop) == [None, None]
    assert "was revoked" in str(handshake(stolen.identity(), shop)[1])
    # The thief's next: a certificate that was made since, for the key that was revoked.
    key = stolen.identity().key
    request = x509.CertificateSigningRequestBuilder(stolen.identity().certificate.subject)
    (tmp_path / "thief.csr").write_bytes(request.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    with refused(DataError, code="revoked", key=tmp_path / "thief.csr"):
        sign_certificate(tmp_path / "thief.csr", consortium / "authority", tmp_path / "thief.crt", NOW)
    assert not (tmp_path / "thief.crt").exists()


def test_all_that_was_certified_of_a_name_is_revoked_and_nothing_else(consortium: Path, tmp_path: Path) -> None:
    first = kit(consortium, "bank").identity()
    renew(consortium, "bank", tmp_path)
    second = kit(consortium, "bank").identity()
    made, _ = revoke(authority(consortium), "bank", NOW)
    assert set(made.revoked) == {first.certificate.serial_number, second.certificate.serial_number}
    again, _ = revoke(authority(consortium), "shop", NOW + timedelta(days=1))
    assert again.number == 2
    assert again.revoked.items() > made.revoked.items(), "what was revoked stays so, since when it was"
    third, _ = revoke(authority(consortium), "bank", NOW + timedelta(days=2))
    assert third.revoked == again.revoked
    everybody = {one.serial_number for one in authority(consortium).issued()}
    assert len(everybody - set(again.revoked)) == 2, "the server and the administrator"


def test_a_certificate_that_was_revoked_on_its_way_is_not_installed(consortium: Path, tmp_path: Path) -> None:
    bank = kit(consortium, "bank")
    request_certificate(bank, tmp_path / "bank.csr")
    sign_certificate(tmp_path / "bank.csr", consortium / "authority", tmp_path / "bank.crt", NOW)
    made, _ = revoke(authority(consortium), "bank", NOW)
    accept_newer(bank.path, made.pem)
    with refused(DataError, code="revoked", key=tmp_path / "bank.crt"):
        install_certificate(bank, tmp_path / "bank.crt", NOW)


def test_one_certificate_can_be_revoked_by_its_number(consortium: Path, tmp_path: Path) -> None:
    old = kit(consortium, "bank").identity().certificate.serial_number
    renew(consortium, "bank", tmp_path)
    made, _ = revoke(authority(consortium), "bank", NOW, serials=[old, 77])
    assert set(made.revoked) == {old, 77}, "also such as was never kept"
    shops = kit(consortium, "shop").identity().certificate.serial_number
    with pytest.raises(DataError, match=r"is a certificate of shop, not of bank"):
        revoke(authority(consortium), "bank", NOW, serials=[shops])
    with refused(DataError, key="NAME", value="bnak"):
        revoke(authority(consortium), "bnak", NOW)
    with pytest.raises(ConfigError, match="whose"):
        revoke(authority(consortium), None, NOW, serials=[old])


def test_who_left_is_not_certified_until_taken_back(consortium: Path, tmp_path: Path) -> None:
    revoke(authority(consortium), "bank", NOW, leaves=True)
    revoke(authority(consortium), "shop", NOW)
    with pytest.raises(DataError, match="bank has left the project"):
        renew(consortium, "bank", tmp_path)
    renew(consortium, "shop", tmp_path)
    revoke(authority(consortium), "bank", NOW)
    renew(consortium, "bank", tmp_path)


@pytest.fixture
def forged(consortium: Path, tmp_path: Path) -> dict[str, bytes]:
    """Lists that would put the bank's thief in good standing, or a good holder out of it, each named by its fault."""
    serial = kit(consortium, "bank").identity().certificate.serial_number
    other = Project()
    (tmp_path / "other.key").write_bytes((consortium / "kits" / "bank" / "startup" / "client.key").read_bytes())
    good = crl(consortium, 9, [serial])
    der = bytearray(x509.load_pem_x509_crl(good).public_bytes(Encoding.DER))
    at = der.index(serial.to_bytes(serial.bit_length() // 8 + 1, "big"))
    der[at + 3] ^= 1
    changed = x509.load_der_x509_crl(bytes(der)).public_bytes(Encoding.PEM)
    name = authority(consortium).root().subject
    return {
        "the root certificate did not sign it": other_roots(other),
        "the root certificate did not sign it ": crl(consortium, 9, key=tmp_path / "other.key"),
        "the root certificate did not sign it  ": crl(
            consortium, 9, key=tmp_path / "other.key", issuer=kit(consortium, "bank").identity().certificate.subject
        ),
        "the root certificate did not sign it   ": changed,
        "the root certificate did not sign it    ": crl(
            consortium, 9, issuer=x509.Name([*name, x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "x")])
        ),
        "demands the extension 1.3.6.1.4.1.99999.1, which is not known": crl(
            consortium, 9, extensions=[(UNKNOWN, True)]
        ),
        "demands the extension 2.5.29.27": crl(consortium, 9, extensions=[(x509.DeltaCRLIndicator(1), True)]),
        "demands the extension 1.3.6.1.4.1.99999.1 for serial": crl(
            consortium, 9, [serial], of_entries=[(UNKNOWN, True)]
        ),
        "cannot be read": crl(consortium, None, [serial]),
        "cannot be read ": good[: len(good) // 2],
        "cannot be read  ": good[:120] + b"A" + good[121:],
        "is PEM of at most": b"",
        "is PEM of at most ": bytes(x509.load_pem_x509_crl(good).public_bytes(Encoding.DER)),
        "is PEM of at most  ": good + b"\n" * MAX_LIST_BYTES,
        "is PEM of at most   ": (consortium / "authority" / "rootCA.pem").read_bytes(),
    }


def other_roots(other: Project) -> bytes:
    builder = x509.CertificateRevocationListBuilder(other.name, NOW, NOW + timedelta(days=9))
    signed = builder.add_extension(x509.CRLNumber(9), critical=False).sign(other.key, hashes.SHA256())
    return signed.public_bytes(Encoding.PEM)


def fault_at(site: Path, identity: Identity) -> str:
    """Code of what a site's own list says against a certificate."""
    found = installed_list(site)
    fault = None if found is None else found.fault(identity.certificate)
    return "" if fault is None else fault.code


def test_forged_lists_are_refused_and_the_old_one_stays(
    consortium: Path, stolen: Kit, tmp_path: Path, forged: dict[str, bytes]
) -> None:
    revoke(authority(consortium), "bank", NOW)
    shop = kit(consortium, "shop")
    install_list(shop.path, authority(consortium).list_path)
    path = shop.path / "startup" / "revoked.pem"
    before = path.read_bytes()
    for fault, pem in forged.items():
        with pytest.raises(ProtocolError, match=fault.strip()):
            accept_newer(shop.path, pem)
        (tmp_path / "list").write_bytes(pem)
        with pytest.raises(DataError, match=r"list: .*list of revoked certificates"):
            install_list(shop.path, tmp_path / "list")
        assert path.read_bytes() == before
    assert fault_at(shop.path, stolen.identity()) == "revoked"


def test_without_the_checks_the_forged_lists_are_taken(
    consortium: Path, forged: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "fault_of_list", lambda crl, roots: None)
    for fault, pem in forged.items():
        readable = not fault.startswith(("cannot be read", "is PEM of at most"))
        (consortium / "kits" / "shop" / "startup" / "revoked.pem").unlink(missing_ok=True)
        if readable:
            assert accept_newer(kit(consortium, "shop").path, pem)


def test_a_weak_signature_is_refused(consortium: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = crl(consortium)
    RevocationList.read(good, (authority(consortium).root(),))
    monkeypatch.setattr(lists, "ROOT_SIGNATURES", frozenset())
    with refused(ProtocolError, code="weak-signature"):
        RevocationList.read(good, (authority(consortium).root(),))


def test_a_list_is_never_replaced_by_an_older_one(consortium: Path, stolen: Kit, tmp_path: Path) -> None:
    shop = kit(consortium, "shop").path
    first, _ = revoke(authority(consortium), None, NOW)
    second, _ = revoke(authority(consortium), "bank", NOW)
    third, _ = revoke(authority(consortium), "bank", NOW)
    assert [accept_newer(shop, one.pem) for one in (second, first, second)] == [True, False, False]
    (tmp_path / "first").write_bytes(first.pem)
    with pytest.raises(RunError, match="is list 1, and list 2 is installed"):
        install_list(shop, tmp_path / "first")
    assert fault_at(shop, stolen.identity()) == "revoked"
    # Root-signed, but no successor of what is here.
    with refused(ProtocolError, code="revocation-fork", value=2):
        accept_newer(shop, crl(consortium, 2))
    with refused(ProtocolError, code="revocation-undone", value=9):
        accept_newer(shop, crl(consortium, 9))
    assert installed_list(shop) == second
    assert not accept_newer(shop, second.pem + b"what somebody wrote behind it")
    assert RevocationList.read(first.pem + b"as here", (authority(consortium).root(),)) == first
    assert accept_newer(shop, third.pem)


def test_a_peers_list_that_cannot_be_kept_ends_the_session_with_that_peer(consortium: Path) -> None:
    shop = kit(consortium, "shop")
    first, _ = revoke(authority(consortium), None, NOW)
    second, _ = revoke(authority(consortium), "bank", NOW)
    accept_revocation_list(shop, "B", b"")
    accept_revocation_list(shop, "B", first.pem)
    assert installed_list(shop.path) == first
    file = shop.path / "startup" / LIST_FILE
    file.write_bytes(b"damaged")
    for shown in (b"no list", second.pem):  # the peer's is none; ours is none
        with pytest.raises(LinkError):
            accept_revocation_list(shop, "B", shown)
    assert file.read_bytes() == b"damaged"


def test_a_list_reaches_a_site_through_any_peer(consortium: Path, stolen: Kit) -> None:
    made, _ = revoke(authority(consortium), "bank", NOW)
    install_list(kit(consortium, "server").path, authority(consortium).list_path)
    server, shop = kit(consortium, "server").identity(), kit(consortium, "shop")
    assert server.revocation_list_pem == made.pem
    assert shop.identity().revocation_list_pem == b""
    for shown in (b"", server.revocation_list_pem, crl(consortium, 0)):  # an older one is not taken
        accept_revocation_list(shop, "server", shown)
    assert shop.identity().revoked == made
    assert "was revoked" in str(handshake(stolen.identity(), shop.identity())[1])


def test_lists_that_come_at_once_leave_the_newest(consortium: Path) -> None:
    shop = kit(consortium, "shop").path
    made = [revoke(authority(consortium), None, NOW)[0] for _ in range(8)]
    threads = [threading.Thread(target=accept_newer, args=(shop, one.pem)) for one in (*made[4:], *made[:4])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert installed_list(shop) == made[-1]


def test_what_is_asked_of_every_connection(consortium: Path, stolen: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    server = kit(consortium, "server").path
    shop = kit(consortium, "shop").identity()
    assert fault_at(server, stolen.identity()) == ""
    revoke(authority(consortium), "bank", NOW)
    install_list(server, authority(consortium).list_path)
    assert fault_at(server, stolen.identity()) == "revoked", "in the running process"
    assert fault_at(server, shop) == ""
    reads: list[bytes] = []
    monkeypatch.setattr(RevocationList, "read", lambda pem, roots: reads.append(pem))
    assert fault_at(server, shop) == ""
    assert reads == [], "an unchanged list is not read again"
    monkeypatch.undo()
    (server / "startup" / "revoked.pem").write_bytes(b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    with pytest.raises(DataError, match="delete it, and install the newest list again"):  # damage does not let in
        fault_at(server, shop)
    with pytest.raises(DataError, match="delete it, and install"):
        kit(consortium, "server").identity()


def test_an_overdue_list_still_revokes_and_a_site_may_insist_on_a_newer(
    consortium: Path, stolen: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    shop = kit(consortium, "shop")
    shop.prepare(SiteFile(runs=shop.runs, current_list=True))
    with pytest.raises(ConfigError, match=r"joined with --current-list, and has no list"):
        shop.identity()
    serial = stolen.identity().certificate.serial_number
    accept_newer(shop.path, crl(consortium, 1, [serial], start=NOW))
    shop.identity()
    accept_newer(shop.path, crl(consortium, 2, [serial], start=NOW - timedelta(days=10)))
    with pytest.raises(ConfigError, match=r"should have had a newer list since"):
        shop.identity()
    shop.prepare(SiteFile(runs=shop.runs))
    assert "was revoked" in str(handshake(stolen.identity(), shop.identity())[1])
    assert "should have been renewed on" in caplog.text


def test_a_full_list_is_not_written(consortium: Path) -> None:
    made, _ = revoke(authority(consortium), "bank", NOW)
    with pytest.raises(RunError, match="the list is full"):
        revoke(authority(consortium), "bank", NOW, serials=range(1, 2000))
    assert authority(consortium).revoked() == made
