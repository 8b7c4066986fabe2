"""A project with two brokers, by its commands: a job goes on where either is gone, and certificates are renewed."""

import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from tests import nightly
from tests.cli.commands import veilgraph
from tests.deploy.consortium import JOB
from tests.deploy.same_here import assert_same_here
from tests.link.brokers import needs_broker, wait_until
from veilgraph.core.errors import LinkError
from veilgraph.core.types import SERVER
from veilgraph.deploy.authority import read_certificate
from veilgraph.deploy.demo import LocalNetwork, free_port, join_site, local_network
from veilgraph.deploy.kit import Kit
from veilgraph.graph.settings import DataSettings
from veilgraph.link.nats_client import Brokers
from veilgraph.protocol.job_file import parse_job
from veilgraph.samples.organisations import export_dataset

pytestmark = needs_broker
SECOND = "127.0.0.1"
"""Another name of this machine, for the second broker."""
HOLDERS = ("A", "B")
ADMINISTRATOR = "ops@example.org"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNetwork]:
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "project.yaml"
    options = ["--server", "localhost", "--broker", SECOND, "--dealer", "D", "--administrator", ADMINISTRATOR]
    assert veilgraph("net", "init", *HOLDERS, *options, "--out", file).exit_code == 0
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for each in (content["server"], *content["brokers"]):  # of one machine
        each.update(port=free_port(), cluster=free_port())
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    made = veilgraph("net", "provision", file, "--out", folder / "consortium")
    assert made.exit_code == 0, made.output
    party_files = export_dataset(DataSettings(dataset="synthetic", holders=2), folder / "tables", overlap=0.8, seed=1)
    for each in party_files.values():
        each.write_text(each.read_text(encoding="utf-8") + "\nseed: job\n", encoding="utf-8")
    kits = {path.name: path for path in (folder / "consortium" / "kits").iterdir()}
    with local_network(kits, party_files, report=lambda line: None) as found:
        yield found


def reached(network: LocalNetwork, host: str) -> bool:
    """Whether a holder reaches the broker at one host."""
    brokers = Kit.open(network.kits["A"]).brokers()
    addresses = [each for each in brokers.addresses if each.host == host]
    assert len(addresses) == 1
    try:
        Brokers(addresses, brokers.tls).connect("vg.A.*.x", threading.Event()).drop()
    except LinkError:
        return False
    return True


@nightly
def test_a_job_goes_on_where_either_broker_is_gone(network: LocalNetwork, tmp_path: Path) -> None:
    """The site of the first is killed with its broker in the middle of a job; when it is back, that of the second."""
    changes = {"data": {**JOB["data"], "holders": list(HOLDERS)}, "train": {**JOB["train"], "epochs": 60}}
    settings = parse_job({"name": "goes-on", **JOB, **changes})
    file, kit = tmp_path / "job.yaml", network.kits[ADMINISTRATOR]
    file.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
    results = []
    submitting = threading.Thread(target=lambda: results.append(veilgraph("net", "submit", file, "--kit", kit)))
    submitting.start()

    def trained(epochs: int) -> bool:
        assert submitting.is_alive(), results[0].output
        return len(list((network.runs("A") / "goes-on" / "parties" / "A" / "checkpoints").glob("epoch-*"))) >= epochs

    wait_until(lambda: trained(2), limit_s=90.0)
    network.sites[SERVER].send_signal(signal.SIGKILL)
    wait_until(lambda: not reached(network, "localhost"))
    assert reached(network, SECOND)
    assert "connected: A, B, D" in veilgraph("net", "status", "--kit", kit).output
    network.sites[SERVER].wait()
    network.sites[SERVER] = join_site(network.kits[SERVER], None, 1)
    wait_until(lambda: reached(network, "localhost"), limit_s=60.0)
    network.sites[SECOND].send_signal(signal.SIGKILL)
    submitting.join(120)
    assert results[0].exit_code == 0, results[0].output
    assert_same_here(network, settings, HOLDERS, tmp_path / "here")
    network.sites[SECOND].wait()
    network.sites[SECOND] = join_site(network.kits[SECOND], None, 1)
    wait_until(lambda: reached(network, SECOND), limit_s=60.0)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("name", "host", "option"), [(SERVER, "localhost", ["--broker"]), (SECOND, SECOND, [])])
def test_a_running_brokers_certificate_is_renewed(
    network: LocalNetwork, tmp_path: Path, name: str, host: str, option: list[str]
) -> None:
    kit = Kit.open(network.kits[name])
    authority, before = kit.path.parents[1] / "authority", read_certificate(kit.broker.certificate)
    request, made = tmp_path / "broker.csr", tmp_path / "broker.crt"
    asked = veilgraph("cert", "request", kit.path, "--out", request, *option)
    signed = veilgraph("cert", "sign", request, "--authority", authority, "--out", made)
    assert f"the broker at {host}: SHA-256" in signed.output
    assert signed.output.splitlines()[0] == asked.output.splitlines()[0]
    installed = veilgraph("cert", "install", kit.path, made)
    assert installed.exit_code == 0, installed.output
    own = read_certificate(kit.broker.certificate)
    assert own == read_certificate(made)
    assert own.public_key() != before.public_key()
    assert own.not_valid_after_utc > datetime.now(UTC) + timedelta(days=359)
    wait_until(lambda: shown(kit, host) == own.serial_number, limit_s=20.0)
    assert reached(network, host)


def shown(kit: Kit, host: str) -> int:
    """Serial number of the certificate that a broker shows."""
    brokers = kit.brokers()
    (address,) = [each for each in brokers.addresses if each.host == host]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(kit.broker.root)
    with (
        socket.create_connection((address.host, address.port), 5.0) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"").serial_number
