"""Commands for certificates and keys: cert request, sign, install, revoke, passphrase."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilgraph.cli.app import cert, command
from veilgraph.cli.kits import PassphraseFile, open_kit, passphrase_source
from veilgraph.cli.output import echo

if TYPE_CHECKING:
    from veilgraph.deploy.authority import Authority
    from veilgraph.deploy.kit import Kit

KitArgument = Annotated[Path, typer.Argument(metavar="KIT", help="This participant's start-up kit.")]
AuthorityOption = Annotated[Path, typer.Option("--authority", metavar="DIR", help="The folder that provision made.")]


@command("request", "veilgraph cert request consortium/kits/bank --out bank.csr", group=cert)
def request_command(
    kit: KitArgument,
    out: Annotated[Path, typer.Option(metavar="FILE.csr", help="The request to write; no secret.")],
    passphrase_file: PassphraseFile = None,
    passphrase: Annotated[bool, typer.Option("--passphrase", metavar="", help="Ask for one, to seal the key.")] = False,
    broker: Annotated[
        bool, typer.Option("--broker", metavar="", help="At the server: for its broker, in place of itself.")
    ] = False,
) -> None:
    """Make a key of one's own in the kit, and a request for a certificate: at first, and before the old one expires."""
    from veilgraph.deploy.certificates import request_certificate
    from veilgraph.deploy.key_file import PASSPHRASE_VARIABLE

    wanted = passphrase or passphrase_file is not None or PASSPHRASE_VARIABLE in os.environ
    source = passphrase_source(passphrase_file, of=kit, fresh=True) if wanted else None
    found = request_certificate(open_kit(kit, passphrase_file), out, source, broker=broker)
    echo(f"{found.name}: SHA-256 of the public key {found.sha256}")
    echo(f"send {out} to the authority, and read the fingerprint to it over another channel")


@command("sign", "veilgraph cert sign bank.csr --authority consortium/authority --out bank.crt", group=cert)
def sign_command(
    request: Annotated[Path, typer.Argument(metavar="FILE.csr", help="A participant's request.")],
    authority: AuthorityOption,
    out: Annotated[Path, typer.Option(metavar="FILE.crt", help="The certificate to write.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long it is valid.")] = 360,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign a participant's request, at the authority, off line; compare the fingerprint before the file goes back."""
    from veilgraph.deploy.certificates import sign_certificate

    source = passphrase_source(passphrase_file, of=authority)
    found = sign_certificate(request, authority, out, datetime.now(UTC), days, source)
    echo(f"{found.name}: SHA-256 of the public key {found.sha256}")
    echo(f"only if {found.name} has read you the same: send {out} back to it")


@command("install", "veilgraph cert install consortium/kits/bank bank.crt", group=cert)
def install_command(
    kit: KitArgument,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The certificate that cert sign wrote, or the list of cert revoke.")
    ],
    passphrase_file: PassphraseFile = None,
) -> None:
    """Use what the authority signed from now on: one's certificate with its key, or a list of revoked certificates.

    At every broker, another participant's certificate has it let that in; a renewed one is not before.
    For one's own certificate the site must be stopped; for the others, and the broker's, it may run. An older list is
    not installed.
    """
    from veilgraph.deploy.certificates import admit_certificate, install_certificate
    from veilgraph.deploy.revocation import install_list

    opened = open_kit(kit, passphrase_file)
    if _is_list(file):
        found = install_list(opened.path, file)
        count = f"{len(found.revoked)} revoked, next one by {found.next_update:%Y-%m-%d}"
        echo(f"list {found.number} is installed: {count}")
        return
    if (admitted := admit_certificate(opened, file)) is not None:
        echo(f"the broker lets in {admitted} with this certificate from now on")
        return
    until = install_certificate(opened, file, datetime.now(UTC))
    echo(f"installed; valid until {until:%Y-%m-%d}")


def _is_list(file: Path) -> bool:
    """Whether it is a list of revoked certificates; what is neither, or cannot be read, is refused as a certificate."""
    try:
        return b"BEGIN X509 CRL" in file.read_bytes()
    except OSError:
        return False


@command("revoke", "veilgraph cert revoke bank --authority consortium/authority", group=cert)
def revoke_command(
    authority: AuthorityOption,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Whose certificates; the server's name is its host. Default: nobody's, only sign the list anew.",
        ),
    ] = None,
    serial: Annotated[
        list[str] | None,
        typer.Option(metavar="HEX", help="Only the certificate with this serial number; may be given several times."),
    ] = None,
    leaves: Annotated[
        bool, typer.Option("--leaves", metavar="", help="It gets no new certificate, until revoked without this.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Until when there will be a newer list.")] = 360,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Sign the next list of revoked certificates, at the authority: a participant's, all that it had up to now."""
    from veilgraph.deploy.authority import Authority, revoke

    signer = Authority(authority, passphrase_source(passphrase_file, of=authority))
    serials = [_serial(text) for text in serial or ()]
    made, chosen = revoke(signer, name, datetime.now(UTC), serials=serials, leaves=leaves, days=days)
    for certificate in chosen:
        echo(f"revoked {certificate.serial_number:040x}, valid until {certificate.not_valid_after_utc:%Y-%m-%d}")
    echo(
        f"list {made.number}, {len(made.revoked)} revoked, next one by {made.next_update:%Y-%m-%d}: {signer.list_path}"
    )
    echo("no secret; at the server and every holder: veilgraph cert install KIT revoked.pem")


@command("passphrase", "veilgraph cert passphrase consortium/kits/bank --passphrase-file passphrase", group=cert)
def passphrase_command(
    folder: Annotated[Path, typer.Argument(metavar="KIT", help="A start-up kit, or the authority's folder.")],
    remove: Annotated[
        bool, typer.Option("--remove", metavar="", help="Write a sealed key in the clear again.")
    ] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Seal a private key with a passphrase; whoever uses it is asked for that. The site must be stopped."""
    from veilgraph.deploy.key_file import protect, unprotect

    source = passphrase_source(passphrase_file, of=folder, fresh=not remove)
    (unprotect if remove else protect)(_key_owner(folder).key_file, folder, source)
    if remove:
        echo("the key lies in the clear again, with mode 600")
    else:
        echo("sealed; without the passphrase the key is lost. Backups of this folder still hold it in the clear")


def _key_owner(folder: Path) -> Kit | Authority:
    from veilgraph.deploy.authority import Authority

    return Authority(folder) if (folder / "rootCA.pem").is_file() else open_kit(folder)


def _serial(text: str) -> int:
    try:
        return int(text.replace(":", ""), 16)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no serial number, as in 5a:78:9c:2f", param_hint="--serial") from error
