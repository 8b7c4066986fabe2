"""The gate for archives of jobs: FLARE unpacks and reads what passed here, made anew, and nothing else.

An archive has exactly the listed files, stored uncompressed and of bounded size. An administrator's certificate signed
each of them, and each is byte for byte of the one form of a job (``submission``). All of that is checked in memory.
FLARE then gets an archive that is written here from the checked contents, so that nothing else of the received one
reaches FLARE's parsers.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple
from zipfile import ZIP_STORED, ZipFile, ZipInfo

from cryptography import x509
from nvflare.fuel.sec.admin_cert import validate_admin_leaf_cert
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import load_crt, verify_cert_chain, verify_content

from veilgraph.deploy.revocation import refuses
from veilgraph.deploy.submission import (
    APP,
    CLIENT_CONFIG,
    FOLDER,
    MAX_REQUEST_CHARACTERS,
    META,
    SERVER_CONFIG,
    is_app,
    is_meta,
)

MAX_ARCHIVE_BYTES: Final = 1 << 20
MAX_FILE_BYTES: Final = MAX_REQUEST_CHARACTERS + 4096
_ADMINISTRATOR: Final = "project_admin"
"""Role in an administrator's certificate."""

_CONFIGS: Final = (CLIENT_CONFIG, SERVER_CONFIG)
Tree = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""Folder → its files and its folders, without the two files of its signature."""
APP_TREE: Final[Tree] = {"": ((), ("config",)), "config/": (_CONFIGS, ())}
"""What a site receives."""
JOB_TREE: Final[Tree] = {
    f"{FOLDER}/": ((META,), (APP,)),
    f"{FOLDER}/{APP}/": ((), ("config",)),
    f"{FOLDER}/{APP}/config/": (_CONFIGS, ()),
}
"""What the server receives."""


class Refused(Exception):
    """The archive is no job, for a reason that may be told to whoever sent it."""


class Submitter(NamedTuple):
    """Who signed, as the certificate says."""

    name: str
    organisation: str
    role: str


class App(NamedTuple):
    """A site's part of a job."""

    archive: bytes
    submitter: Submitter


def hold_app(content: object, kit: Path) -> App:
    """Check the archive that a site received, and make it anew.

    Raises:
        Refused: it is not of the one form, or no administrator of the kit's project signed it.
    """
    members, submitter = _checked(content, APP_TREE, kit)
    _check_configs(members, "config/")
    return App(_packed(members, APP_TREE), submitter)


def hold_job(content: object, kit: Path) -> bytes:
    """Check the archive that the server received, and make it anew.

    Raises:
        Refused: as ``hold_app``.
    """
    members, _ = _checked(content, JOB_TREE, kit)
    _check_configs(members, f"{FOLDER}/{APP}/config/")
    try:
        exact = is_meta(members[f"{FOLDER}/{META}"])
    except Exception as error:
        raise Refused(f"{META} cannot be read") from error
    if not exact:
        raise Refused(f"{META} is not of the one form of a job")
    return _packed(members, JOB_TREE)


def _check_configs(members: Mapping[str, bytes], folder: str) -> None:
    if not is_app({name: members[folder + name] for name in _CONFIGS}):
        raise Refused(f"{' and '.join(_CONFIGS)} are not of the one form of a job")


def _checked(content: object, tree: Tree, kit: Path) -> tuple[dict[str, bytes], Submitter]:
    """Path → content of an archive's files, whose sizes and signatures were checked."""
    try:
        members = _members(content, tree)
        return members, _submitter(members, tree, kit)
    except Refused:
        raise
    except Exception as error:  # whatever a stranger's archive does here, it is no signed job
        raise Refused("its archive or its signature cannot be read") from error


def _members(content: object, tree: Tree) -> dict[str, bytes]:
    if not isinstance(content, bytes) or len(content) > MAX_ARCHIVE_BYTES:
        raise Refused(f"an archive of at most {MAX_ARCHIVE_BYTES} bytes is allowed")
    with ZipFile(BytesIO(content)) as archive:
        found = [entry for entry in archive.infolist() if entry.filename not in tree]
        if sorted(entry.filename for entry in found) != sorted(_paths(tree)):
            raise Refused("its files are not those of a job")
        for entry in found:
            mode = entry.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG) or entry.compress_type != ZIP_STORED:
                raise Refused("a file in it is a link, or compressed")
            if not entry.compress_size == entry.file_size <= MAX_FILE_BYTES:
                raise Refused(f"a file in it has more than {MAX_FILE_BYTES} bytes")
        return {entry.filename: archive.read(entry) for entry in found}


def _paths(tree: Tree) -> list[str]:
    signature = (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE)
    return [folder + name for folder, (files, _) in tree.items() for name in (*files, *signature)]


def _submitter(members: Mapping[str, bytes], tree: Tree, kit: Path) -> Submitter:
    """The administrator who signed all files and the names of all folders, with one certificate."""
    (pem,) = {members[folder + NVFLARE_SUBMITTER_CRT_FILE] for folder in tree}
    (leaf,) = x509.load_pem_x509_certificates(pem)
    verify_cert_chain(leaf, [], load_crt(kit / "startup" / "rootCA.pem"))
    validate_admin_leaf_cert(leaf)
    names = x509.NameOID
    submitter = Submitter(
        *(_subject(leaf, oid) for oid in (names.COMMON_NAME, names.ORGANIZATION_NAME, names.UNSTRUCTURED_NAME))
    )
    if submitter.role != _ADMINISTRATOR:
        raise Refused("no administrator of this project signed the job")
    if refuses(kit, pem) is not None:
        raise Refused("the certificate that signed the job was revoked")
    for folder, (files, folders) in tree.items():
        signatures = json.loads(members[folder + NVFLARE_SIG_FILE])
        contents = {name: members[folder + name] for name in files} | {name: name.encode() for name in folders}
        for name, content in contents.items():
            verify_content(content, signatures[name], leaf.public_key())
    return submitter


def _subject(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    return "".join(str(each.value) for each in certificate.subject.get_attributes_for_oid(oid)[:1])


def _packed(members: Mapping[str, bytes], tree: Tree) -> bytes:
    """The archive for FLARE, which looks for entries of folders too."""
    content = BytesIO()
    with ZipFile(content, "w", ZIP_STORED) as archive:
        for folder in filter(None, tree):
            archive.writestr(ZipInfo(folder), b"")
        for path, data in members.items():
            archive.writestr(ZipInfo(path), data)
    return content.getvalue()
