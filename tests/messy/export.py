"""A bank, a shop and a telecom export their tables as organisations do: each in its own way, on purpose.

    python -m tests.messy.export exports --customers 1500

Ids are text, with case and spaces as they come; there are dates in four formats, categories, missing values with
several markers, decimal commas, four delimiters and four encodings, labels in a file of their own, and edges of two
relations with times and amounts. A fraudster shows little in any one table, and more in all: frauds come in rings.
"""

import argparse
import csv
import gzip
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet

CUSTOMERS: Final = 1500
FILES: Final = {
    "bank": ("customers.csv", "labels.csv", "transfers.csv"),
    "shop": ("clients.csv", "usage.csv.gz", "orders.csv"),
    "telco": ("subscribers.csv", "calls.csv", "devices.parquet"),
}
"""Party → its files, the one of nodes first."""

_RING: Final = 6
_SHARE: Final = 0.12
_KNOWN: Final = 0.9
_FIRST: Final = date(2024, 1, 1)
_DAYS: Final = 180
Rows = Sequence[Sequence[str]]


@dataclass
class World:
    """Customers, numbered from 0, and who of them commits fraud with whom.

    Attributes:
        seeded: every draw.
        rings: fraudsters who know each other.
        fraud: customer → 1, or 0.
    """

    customers: int
    seeded: random.Random
    rings: list[list[int]] = field(default_factory=list)
    fraud: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        everybody = list(range(self.customers))
        self.seeded.shuffle(everybody)
        count = max(2, round(self.customers * _SHARE / _RING))
        self.rings = [everybody[place * _RING : (place + 1) * _RING] for place in range(count)]
        caught = {each for ring in self.rings for each in ring}
        self.fraud = [int(each in caught) for each in range(self.customers)]

    def normal(self, customer: int, signal: float) -> float:
        """A figure that is higher by `signal` standard deviations at fraudsters."""
        return self.seeded.gauss(signal * self.fraud[customer], 1.0)

    def pairs(self, usual: float, within: float) -> list[tuple[int, int]]:
        """Links: `usual` for each customer with anybody, and each pair of a ring with probability `within`."""
        found = [
            (each, self.seeded.randrange(self.customers))
            for each in range(self.customers)
            for _ in range(int(usual) + (self.seeded.random() < usual % 1))
        ]
        found += [
            (one, other)
            for ring in self.rings
            for place, one in enumerate(ring)
            for other in ring[place + 1 :]
            if self.seeded.random() < within
        ]
        return [(one, other) for one, other in found if one != other]

    def day(self) -> date:
        """A day of the half year."""
        return _FIRST + timedelta(days=self.seeded.randrange(_DAYS))

    def moment(self) -> datetime:
        """A second of it."""
        return datetime.combine(self.day(), datetime.min.time()) + timedelta(seconds=self.seeded.randrange(86_400))

    def past(self, years: float) -> date:
        """A day up to so many years before it."""
        return _FIRST - timedelta(days=1 + self.seeded.randrange(round(365 * years)))

    def some(self, share: float = _KNOWN) -> list[int]:
        """Customers whom one organisation knows."""
        return [each for each in range(self.customers) if self.seeded.random() < share]

    def or_marker(self, value: str, markers: Sequence[str], share: float = 0.04) -> str:
        """A value, or rarely what stands for none."""
        return self.seeded.choice(markers) if self.seeded.random() < share else value


def export(folder: Path, customers: int = CUSTOMERS, seed: int = 0) -> dict[str, list[Path]]:
    """Writes the three exports.

    Args:
        folder: to make, with a folder for each organisation.
        customers: whom there are in all; nine in ten are at each organisation.
        seed: of everything.

    Returns:
        Organisation → its files, the one of nodes first.
    """
    world = World(customers, random.Random(seed))
    for party, write in (("bank", _bank), ("shop", _shop), ("telco", _telco)):
        (folder / party).mkdir(parents=True)
        write(world, folder / party)
    return {party: [folder / party / name for name in names] for party, names in FILES.items()}


def _bank(world: World, folder: Path) -> None:
    """Semicolons, decimal commas and cp1252; ids in capitals, here and there with a space behind."""
    known = world.some()
    rows = [
        [
            _id(each) + ("  " if each % 11 == 0 else ""),
            f"Hauptstraße {each}",
            f"{world.past(50):%d.%m.%Y}",
            world.or_marker(_comma(2400 + 500 * world.normal(each, -0.4)), ("NA", "-", "unbekannt")),
            world.or_marker(_comma(900 + 400 * world.normal(each, 0.5)), ("NA",)),
            world.or_marker(world.seeded.choice(("privat", "Geschäft", "jung")), ("NA", "")),
        ]
        for each in known
    ]
    _csv(
        folder / "customers.csv",
        ("Kunde_ID", "Anschrift", "geboren", "Einkommen", "Saldo", "Segment"),
        rows,
        ";",
        "cp1252",
    )
    reviewed = [each for each in known if world.seeded.random() < 0.8]
    labels = [
        [f" {_id(each).lower()}", ("no", "yes")[world.fraud[each]], f"{world.day():%Y-%m-%d}"] for each in reviewed
    ]
    _csv(folder / "labels.csv", ("customer", "fraud", "confirmed_at"), labels, ",", "utf-8")
    transfers = [
        [_id(one), _id(other), _comma(abs(world.seeded.lognormvariate(4, 1))), f"{world.moment():%d.%m.%Y %H:%M}", kind]
        for kind, usual, within in (("Überweisung", 1.2, 0.25), ("Lastschrift", 0.6, 0.1))
        for one, other in world.pairs(usual, within)
    ]
    _csv(folder / "transfers.csv", ("payer", "payee", "amount", "booked_at", "kind"), transfers, ";", "cp1252")


def _shop(world: World, folder: Path) -> None:
    """Tabs and a byte order mark; ids in lower case; a second table of the same clients."""
    known = world.some()
    rows = [
        [
            _id(each).lower(),
            world.or_marker(f"{world.past(6):%Y-%m-%d}", ("n/a",)),
            world.or_marker(f"{40 + 15 * world.normal(each, 0.5):.2f}", ("n/a", "null")),
            world.seeded.choice(("yes", "no")),
        ]
        for each in known
    ]
    _csv(folder / "clients.csv", ("client_id", "first_order", "basket", "newsletter"), rows, "\t", "utf-8-sig")
    usage = [[_id(each).lower(), str(abs(round(3 + 2 * world.normal(each, 0.5))))] for each in known if each % 7]
    _csv(folder / "usage.csv.gz", ("client_id", "returns"), usage, ",", "utf-8")
    orders = [
        [
            _id(one).lower(),
            _id(other).lower(),
            f"{world.seeded.lognormvariate(3, 1):.2f}",
            f"{world.moment():%Y-%m-%d %H:%M:%S}",
        ]
        for one, other in world.pairs(0.7, 0.25)
    ]
    _csv(folder / "orders.csv", ("sender_id", "recipient_id", "amount", "ordered_at"), orders, "|", "utf-8")


def _telco(world: World, folder: Path) -> None:
    """UTF-16 and bars; calls beside shared devices, which are Parquet with times as such."""
    known = world.some()
    rows = [
        [
            _id(each).title(),
            f"{world.past(8):%Y/%m/%d}",
            world.or_marker(f"{20 + 6 * world.normal(each, 0.4):.1f}", ("?", "NULL")),
            world.or_marker(f"{1 + abs(world.normal(each, 0.8)):.2f}", ("?",)),
            world.seeded.choice(("prepaid", "contract")),
        ]
        for each in known
    ]
    _csv(
        folder / "subscribers.csv", ("subscriber_no", "since", "monthly", "night_share", "tariff"), rows, "|", "utf-16"
    )
    calls = [
        [_id(one), _id(other), f"{world.seeded.expovariate(1 / 180):.0f}", f"{world.moment():%Y-%m-%dT%H:%M:%S}"]
        for one, other in world.pairs(1.5, 0.3)
    ]
    _csv(folder / "calls.csv", ("caller", "callee", "duration_s", "started_at"), calls, ",", "utf-8")
    pairs = world.pairs(0.15, 0.4)
    devices: Mapping[str, pa.Array] = {
        "subscriber_a": pa.array([_id(one) for one, _ in pairs]),
        "subscriber_b": pa.array([_id(other) for _, other in pairs]),
        "last_seen": pa.array([world.moment() for _ in pairs], pa.timestamp("s")),
    }
    pa.parquet.write_table(pa.table(dict(devices)), folder / "devices.parquet")


def _id(customer: int) -> str:
    return f"KD-{customer:06}"


def _comma(value: float) -> str:
    return f"{value:.2f}".replace(".", ",")


def _csv(path: Path, names: Sequence[str], rows: Rows, delimiter: str, encoding: str) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator="\r\n")
    writer.writerow(names)
    writer.writerows(rows)
    content = text.getvalue().encode(encoding)
    path.write_bytes(gzip.compress(content, mtime=0) if path.name.endswith(".gz") else content)


def main() -> None:
    """Writes them where the command says."""
    parser = argparse.ArgumentParser(description="Write three organisations' exports, messy on purpose.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--customers", type=int, default=CUSTOMERS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for files in export(given.folder, given.customers, given.seed).values():
        for path in files:
            print(path)  # noqa: T201


if __name__ == "__main__":
    main()
