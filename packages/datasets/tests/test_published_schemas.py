"""A world in the columns of published data sets is that world, and goes from CSV to a result without an edited file."""

import csv
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import yaml
from veilgraph_datasets import payments_tables, published_schemas
from veilgraph_datasets.settings import PaymentsSettings
from veilgraph_datasets.transfers import BANK_FACTS, CURRENCIES, LAWFUL, METHODS
from veilgraph_wizard import sampling

from packages.datasets.tests.payments import SMALL, small_world
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.protocol.party_settings import read_party_settings

Words = tuple[str | Path, ...]
SEED = 9
AML = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,Amount Paid,Payment Currency,"
    "Payment Format,Is Laundering"
)
PETS = (
    "MessageId,UETR,TransactionReference,Timestamp,Sender,Receiver,OrderingAccount,OrderingName,OrderingStreet,"
    "OrderingCountryCityZip,BeneficiaryAccount,BeneficiaryName,BeneficiaryStreet,BeneficiaryCountryCityZip,"
    "SettlementDate,SettlementCurrency,SettlementAmount,InstructedCurrency,InstructedAmount,Label"
)
MONEY = ("Euro", "US Dollar", "UK Pound", "Swiss Franc", "Swedish Krona")
FORMATS = ("ACH", "Wire", "Credit Card", "Cheque")
SIZES = [word for key, value in SMALL.items() for word in ("--set", f"data.payments.{key}={value}")]


@pytest.fixture(scope="module")
def aml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("aml") / "aml", "amlworld", ("010", "020", "030"))


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("pets") / "pets", "pets", ("BANK1", "BANK2", "BANK3", "network"))


def exported(out: Path, schema: str, names: tuple[str, ...]) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_schemas, "ROWS_AT_ONCE", 1000)
        files = published_schemas.SCHEMAS[schema](PaymentsSettings(**SMALL), out, SEED, "csv")
    assert files == {name: out / name / "transactions.csv" for name in names}
    return out


def read(path: Path) -> tuple[str, list[list[str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    return ",".join(header), rows


def test_amlworlds_columns_have_the_worlds_transfers(aml: Path) -> None:
    world = small_world(SEED)
    transfers, numbers = world.transfers, dict[tuple[int, int], str]()
    for place, name in enumerate(("010", "020", "030")):
        header, rows = read(aml / name / "transactions.csv")
        assert header == AML
        seen = np.flatnonzero(transfers.seen_by(place))
        assert len(rows) == len(seen)
        for at, row in zip(seen.tolist(), rows, strict=True):
            for bank, customer, number in (
                (transfers.payer_bank[at], transfers.payer[at], row[2]),
                (transfers.payee_bank[at], transfers.payee[at], row[4]),
            ):
                assert numbers.setdefault((int(bank), int(customer)), number) == number, "the same in both books"
            amount, currency = transfers.amount[at] / 100, MONEY[transfers.currency[at]]
            begin = datetime(2022, 9, 1) + timedelta(seconds=int(transfers.time[at]))
            assert [row[0], row[1], row[3]] == [
                f"{begin:%Y/%m/%d %H:%M}",
                *(f"0{each + 1}0" for each in (transfers.payer_bank[at], transfers.payee_bank[at])),
            ]
            assert [float(row[5]), row[6], float(row[7]), row[8]] == [amount, currency, amount, currency]
            assert row[9:] == [FORMATS[transfers.method[at]], str(int(transfers.pattern[at] != LAWFUL))]
        header, accounts = read(aml / name / "accounts.csv")
        assert header == "Bank Name,Bank ID,Account Number,Entity ID,Entity Name"
        own = np.flatnonzero(world.customers.of_bank(place))
        known = {number: customer for (bank, customer), number in numbers.items() if bank == place}
        assert len(accounts) == len(own)
        assert {row[2] for row in accounts} >= known.keys()
        assert {row[1] for row in accounts} == {f"{place + 1}0"}
        for row in accounts:
            if row[2] in known:
                assert ("Corporation" in row[4]) == world.customers.company[known[row[2]]]
        assert [row[2] for row in accounts] == sorted(row[2] for row in accounts)
        people = [known[row[2]] for row in accounts if row[2] in known]
        assert people != sorted(people), "numbers are in an order of their own"
    assert len(set(numbers.values())) == len(numbers), "no number is at two banks"
    assert len(MONEY) == len(CURRENCIES)
    assert len(FORMATS) == len(METHODS)


def test_the_pets_networks_file_has_what_crosses_banks_and_no_flags(pets: Path) -> None:
    world = small_world(SEED)
    transfers = world.transfers
    header, rows = read(pets / "network" / "transactions.csv")
    assert header == PETS
    across = np.flatnonzero(transfers.payer_bank != transfers.payee_bank)
    assert [int(row[0].removeprefix("TR")) for row in rows] == across.tolist()
    assert not (pets / "network" / "accounts.csv").exists()
    of_network = {row[0]: row for row in rows}
    assert len({row[1] for row in rows}) == len({row[2] for row in rows}) == len(rows)
    for place, name in enumerate(("BANK1", "BANK2", "BANK3")):
        header, mine = read(pets / name / "transactions.csv")
        assert header == PETS
        assert [int(row[0].removeprefix("TR")) for row in mine] == np.flatnonzero(transfers.seen_by(place)).tolist()
        assert all(row == of_network[row[0]] for row in mine if row[4] != row[5])
        assert [int(row[-1]) for row in mine] == (transfers.pattern[transfers.seen_by(place)] != LAWFUL).tolist()
        header, accounts = read(pets / name / "accounts.csv")
        assert header == "Bank,Account,Name,Street,CountryCityZip,Flags"
        people = {row[1]: row[2:5] for row in accounts}
        assert len(people) == len(accounts) == world.customers.of_bank(place).sum()
        assert {row[0] for row in accounts} == {name}
        for row in mine:
            for end, start in ((row[4], 6), (row[5], 10)):
                assert end != name or people[row[start]] == row[start + 1 : start + 4]
            assert row[14] == row[3][2:10].replace("-", "")
        flags = [int(row[5]) for row in accounts]
        assert {*flags} <= {*range(len(BANK_FACTS) + 1)}
        assert np.mean(flags) > 0


def test_a_schema_is_asked_for_by_its_name(tmp_path: Path) -> None:
    export: Words = ("data", "export", "payments", "--out", tmp_path / "out", *SIZES)
    said = veilgraph(*export, "--schema", "amlworld", "--format", "parquet")
    assert said.exit_code == 0, said.output
    assert f"veilgraph data accounts {tmp_path / 'out' / '010' / 'transactions.parquet'} --holder 010" in said.stdout
    table = pyarrow.parquet.read_table(tmp_path / "out" / "020" / "transactions.parquet")
    assert ",".join(table.column_names) == AML.replace("To Bank,Account", "To Bank,Account.1")
    assert "Invalid value for --schema: 'elliptic' is no schema; there are: amlworld, pets" in usage_error(
        veilgraph(*export, "--schema", "elliptic")
    )
    digits: Words = ("data", "export", "digits", "--out", tmp_path / "digits", "--schema", "pets")
    assert "there are: none for digits" in usage_error(veilgraph(*digits))
    assert "not an empty directory" in one_error(veilgraph(*export, "--schema", "pets"))
    with refused(RunError, key=tmp_path / "out"):
        payments_tables.export_payments(PaymentsSettings(**SMALL), tmp_path / "out", 0)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts look at fewer rows of tables that are alike from end to end: each row is read in every form there is."""
    monkeypatch.setattr(sampling, "ROWS", 200)


def party(folder: Path, name: str, *tables: str) -> Path:
    """A bank's party file, by commands alone."""
    transfers, nodes, file = folder / name / "transactions.csv", folder / name / "nodes.csv", folder / f"{name}.yaml"
    made = veilgraph("data", "accounts", transfers, "--holder", name, "--out", nodes, "--split", "random")
    assert made.exit_code == 0, made.output
    further = [folder / name / each for each in tables]
    init: Words = (
        "data",
        "init",
        nodes,
        *further,
        transfers,
        "--party",
        name,
        "--id",
        "account_id",
        "--label",
        "label",
    )
    drafted = veilgraph(*init, "--accept", "union", "--out", file)
    assert drafted.exit_code == 0, drafted.output
    return file


def trained(folder: Path, *files: Path) -> dict[str, Any]:
    """What a job of these party files comes to, after few steps."""
    job, run = folder / "job.yaml", folder / "run"
    few: Words = ("--set", "train.epochs=2")
    calls: list[Words] = [("init", *files, "--out", job), ("check", job, *few), ("train", job, "--out", run, *few)]
    for words in calls:
        result = veilgraph(*words)
        assert result.exit_code == 0, (words, result.output)
    assert yaml.safe_load(job.read_text(encoding="utf-8"))["paradigm"] == "union"
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert summary["alone"].keys() == {file.stem for file in files} - {"network"}
    assert all(own.keys() >= {"together", "alone"} for own in summary["alone"].values())
    return summary


@pytest.mark.usefixtures("few_rows")
def test_amlworld_from_csv_to_a_result_without_an_edited_file(aml: Path) -> None:
    files = [party(aml, name, "accounts.csv") for name in ("010", "020", "030")]
    settings = [read_party_settings(file) for file in files]
    features = [[feature.columns for feature in each.nodes.features] for each in settings]
    assert features[0] == features[1] == features[2], "all banks have the same columns, of one value or not"
    assert ("to_itself",) in features[0]
    assert not any("accounts.Bank" in name for columns in features[0] for name in columns)
    assert [each.edges[0].target for each in settings] == ["Account.1"] * 3
    assert 0 <= trained(aml, *files)["test_auc"] <= 1


@pytest.mark.usefixtures("few_rows")
def test_pets_from_csv_to_a_result_across_a_network_without_an_edited_file(pets: Path) -> None:
    files = [party(pets, name, "accounts.csv") for name in ("BANK1", "BANK2", "BANK3")]
    for file in files:
        settings = read_party_settings(file)
        (edges,) = settings.edges
        assert (edges.source, edges.source_holder) == ("OrderingAccount", "Sender")
        assert (edges.target, edges.target_holder) == ("BeneficiaryAccount", "Receiver")
        assert ("accounts.Flags",) in [feature.columns for feature in settings.nodes.features]
    known: Words = (
        "data",
        "init",
        pets / "BANK1" / "nodes.csv",
        pets / "BANK1" / "transactions.csv",
        "--party",
        "BANK1",
    )
    assert veilgraph(*known, "--as-of", "2022-10-01", "--out", pets / "known.yaml").exit_code == 0
    (edges,) = read_party_settings(pets / "known.yaml").edges
    assert edges.filter is not None
    assert (edges.filter.column, f"{edges.filter.before:%F}") == ("Timestamp", "2022-10-01")
    network = pets / "network.yaml"
    init: Words = ("data", "init", pets / "network" / "transactions.csv", "--party", "network", "--accept", "union")
    assert veilgraph(*init, "--out", network).exit_code == 0
    assert 0 <= trained(pets, *files, network)["test_auc"] <= 1
