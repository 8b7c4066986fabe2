"""Compares goldens: ``python -m tests.goldens [--write | --base COMMIT] [CASE...]``."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.goldens.cases import CASES
from tests.goldens.comparing import differences, shown
from tests.goldens.making import FILE, ROOT, Goldens, case_of, make, read_goldens, write_goldens


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A folder with another commit's tree, for a while."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)


def _of_base(commit: str, names: Sequence[str]) -> Goldens:
    with checked_out(commit) as tree:
        _say(f"making the goldens of {commit}")
        return make(tree, names)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Exit code 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description="What runs give, pinned.")
    parser.add_argument("--write", action="store_true", help=f"renew {FILE.name}")
    parser.add_argument(
        "--base", metavar="COMMIT", help="compare with this commit's, made here, in place of the file's"
    )
    parser.add_argument("names", nargs="*", metavar="CASE", help="only these cases; default: all")
    asked = parser.parse_args()
    names = asked.names or list(CASES)
    if asked.write and (asked.names or asked.base):
        parser.error("--write renews all cases; leave the rest out")
    if unknown := set(names) - CASES.keys():
        parser.error(f"there is no case {sorted(unknown)[0]!r}")
    before = _of_base(asked.base, names) if asked.base else read_goldens() if FILE.exists() else {"cases": {}}
    _say("making the goldens of this tree")
    after = make(ROOT, names)
    exact = before.get("environment") == after["environment"]
    differing = 0
    for name in names:
        found = differences(case_of(before, name), case_of(after, name), exact=exact)
        differing += bool(found)
        if found:
            _say(shown(name, found))
    how = "to the bit" if exact else f"but for rounding: they were made with {before.get('environment')}"
    _say(f"{len(names) - differing} of {len(names)} cases are the same, {how}")
    if asked.write:
        write_goldens(after)
        return 0
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
