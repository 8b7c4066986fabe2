"""Commands for certificates and keys: cert request, sign, install, revoke, passphrase."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import PassphraseFile, argument, cert, command, open_kit, option, passphrase_source
from veilgraph.cli.output import echo
from veilgraph.core.deferred import deferred

with deferred():
    from veilgraph.deploy import certificates, key_file
    from veilgraph.deploy.authority import Authority, revoke
    from veilgraph.deploy.kit import Kit
    from veilgraph.deploy.revocation import install_list

KitArgument = Annotated[Path, argument("This participant's start-up kit.", "KIT")]
AuthorityOption = Annotated[Path, option("The folder that provision made.", "DIR", name="--authority")]


@command("request", "veilgraph cert request consortium/kits/bank --out bank.csr", group=cert)
def request_command(
    kit: KitArgument, out: Path, passphrase_file: PassphraseFile = None, passphrase: bool = False, broker: bool = False
) -> None:
    """Make a new private key in the kit, and a request for its certificate: at first, and before the old one expires.

    Options:
        --out FILE.csr: The request to write; it holds no secret.
        --passphrase: Ask for a passphrase that seals the key.
        --broker: At the server: make both for its broker.
    """
    wanted = passphrase or passphrase_file is not None or key_file.PASSPHRASE_VARIABLE in os.environ
    source = passphrase_source(passphrase_file, of=kit, fresh=True) if wanted else None
    found = certificates.request_certificate(open_kit(kit, passphrase_file), out, source, broker=broker)
    echo(f"{found.name}: SHA-256 of the public key {found.sha256}")
    echo(f"send {out} to the authority, and read the fingerprint to it over another channel")


@command("sign", "veilgraph cert sign bank.csr --authority consortium/authority --out bank.crt", group=cert)
def sign_command(
    request: Path,
    authority: AuthorityOption,
    out: Path,
    days: Annotated[int, option(min=1, max=3650)] = 360,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a participant's request, at the authority and off line. Compare fingerprints before the file goes back.

    Options:
        FILE.csr (request): A participant's request.
        --out FILE.crt: The certificate to write.
        --days: Days for which the certificate is valid.
    """
    source = passphrase_source(passphrase_file, of=authority)
    found = certificates.sign_certificate(request, authority, out, datetime.now(UTC), days, source)
    echo(f"{found.name}: SHA-256 of the public key {found.sha256}")
    echo(f"only if {found.name} has read you the same: send {out} back to it")


@command("install", "veilgraph cert install consortium/kits/bank bank.crt", group=cert)
def install_command(kit: KitArgument, file: Path, passphrase_file: PassphraseFile = None) -> None:
    """Install what the authority signed: a certificate, a list of revoked certificates, or the project's roles.

    A broker lets in a participant's renewed certificate only after it was installed there too.
    Stop the site to install its own certificate; all else may be installed while it runs. Older files are refused.

    Options:
        FILE (file): A certificate of cert sign, a list of cert revoke, or roles.json of net provision --add.
    """
    opened = open_kit(kit, passphrase_file)
    content = _read_or_empty(file)
    if content.lstrip().startswith(b"{"):
        roles = certificates.install_roles(opened, file)
        echo(f"installed; the project's holders are now {', '.join(roles.holders)}")
        return
    if b"BEGIN X509 CRL" in content:
        found = install_list(opened.path, file)
        count = f"{len(found.revoked)} revoked, next one by {found.next_update:%Y-%m-%d}"
        echo(f"list {found.number} is installed: {count}")
        return
    if (admitted := certificates.admit_certificate(opened, file)) is not None:
        echo(f"the broker lets in {admitted} with this certificate from now on")
        return
    until = certificates.install_certificate(opened, file, datetime.now(UTC))
    echo(f"installed; valid until {until:%Y-%m-%d}")


def _read_or_empty(file: Path) -> bytes:
    """Read a file; empty if it cannot be read, which is then refused as a certificate."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


@command("revoke", "veilgraph cert revoke bank --authority consortium/authority", group=cert)
def revoke_command(
    authority: AuthorityOption,
    name: str | None = None,
    serial: list[str] | None = None,
    leaves: bool = False,
    days: Annotated[int, option(min=1, max=3650)] = 360,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Revoke all certificates that a participant has had: sign the next list of revoked ones, at the authority.

    Options:
        [NAME] (name): Participant; the server's name is its host. Default: revoke nothing, only sign the list anew.
        --serial HEX: Revoke only the certificate with this serial number; may be given several times.
        --leaves: Refuse the participant new certificates too, until it is revoked without --leaves.
        --days: Days until the list must be renewed.
    """
    signer = Authority(authority, passphrase_source(passphrase_file, of=authority))
    serials = [_parse_serial(text) for text in serial or ()]
    made, chosen = revoke(signer, name, datetime.now(UTC), serials=serials, leaves=leaves, days=days)
    for certificate in chosen:
        echo(f"revoked {certificate.serial_number:040x}, valid until {certificate.not_valid_after_utc:%Y-%m-%d}")
    echo(
        f"list {made.number}, {len(made.revoked)} revoked, next one by {made.next_update:%Y-%m-%d}: {signer.list_path}"
    )
    echo("no secret; at the server and every holder: veilgraph cert install KIT revoked.pem")


@command("passphrase", "veilgraph cert passphrase consortium/kits/bank --passphrase-file passphrase", group=cert)
def passphrase_command(folder: Path, remove: bool = False, passphrase_file: PassphraseFile = None) -> None:
    """Seal a private key with a passphrase, which every use of the key then asks for. Stop the site first.

    Options:
        KIT (folder): A start-up kit, or the authority's folder.
        --remove: Store the sealed key in the clear again.
    """
    source = passphrase_source(passphrase_file, of=folder, fresh=not remove)
    (key_file.unprotect if remove else key_file.protect)(_open_key_owner(folder).key_file, folder, source)
    if remove:
        echo("the key lies in the clear again, with mode 600")
    else:
        echo("sealed; without the passphrase the key is lost. Backups of this folder still hold it in the clear")


def _open_key_owner(folder: Path) -> Kit | Authority:
    return Authority(folder) if (folder / "rootCA.pem").is_file() else open_kit(folder)


def _parse_serial(text: str) -> int:
    try:
        return int(text.replace(":", ""), 16)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no serial number, as in 5a:78:9c:2f", param_hint="--serial") from error
