"""Run the notebooks and store what their cells show: ``python -m docs.notebooks``, or ``make notebooks``."""

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "notebooks"
MOST_LINES, MOST_BYTES = 200, 400_000  # of what one cell shows, and of all files together
TEXTS: Final = ("text", "text/plain", "text/html")
_HIDDEN: Final = (
    (r"[^\n]*\r(?!\n)|\x1b\[[0-9;?]*[A-Za-z]", ""),  # earlier states of progress bars, and colours
    (r"<style.*?</style>\n?|(?<=>)\n\s*(?=<t[hd]|</tr)", ""),  # pandas' style, and lines within a row of a table
    (r"(?<![\w.<…/)\]%-])/[\w.@+-]+(?:/[\w.@+-]*)*", "…"),  # absolute paths
    (r"\b(?:\d{4}-\d\d-\d\d[T ])?\d\d(?::\d\d)+(?:[.,]\d+)?", "…"),  # times of day
    (r"\b0x[0-9a-fA-F]{5,}", "0x…"),  # memory addresses
)


def clean(text: str, folder: str = "…") -> str:
    """Return a text without what differs between machines and runs; ``folder`` is where the cells ran."""
    for pattern, instead in ((re.escape(folder), "…"), *_HIDDEN):
        text = re.sub(pattern, instead, text, flags=re.DOTALL)
    return text


def stored(outputs: list[Any], folder: str) -> list[Any]:
    """Return a cell's texts, tables and PNG pictures, cleaned; warnings, logs and widgets are left out."""
    kept = [each for each in outputs if each.get("name") != "stderr" and "widget" not in "".join(each.get("data", ()))]
    for each in kept:
        shown = each.get("data", each)
        shown.update({kind: clean(shown[kind], folder) for kind in TEXTS if kind in shown})
        if "data" in each:
            each.update(data={kind: shown[kind] for kind in (*TEXTS, "image/png") if kind in shown}, metadata={})
    return kept


def main() -> None:
    """Run every notebook in an empty folder with one thread, then write all of them."""
    import nbformat  # noqa: PLC0415 - Jupyter is in the environment of the docs alone
    from nbclient import NotebookClient  # noqa: PLC0415

    notebooks = {path: nbformat.read(path, as_version=4) for path in sorted(FOLDER.glob("*.ipynb"))}
    for notebook in notebooks.values():
        with tempfile.TemporaryDirectory() as folder:
            os.environ.update(OMP_NUM_THREADS="1", PYTHONHASHSEED="0", IPYTHONDIR=f"{folder}/.ipython")
            NotebookClient(notebook, record_timing=False, extra_arguments=["--log-level=ERROR"]).execute(cwd=folder)
        for cell in (each for each in notebook.cells if each.cell_type == "code"):
            cell.outputs = stored(cell.outputs, folder)
            assert str(cell.outputs).count("\\n") < MOST_LINES, f"{cell.id} shows too many lines"
        notebook.metadata.language_info = {"name": "python"}
    assert sum(len(nbformat.writes(each).encode()) for each in notebooks.values()) < MOST_BYTES, "all show too much"
    for path, notebook in notebooks.items():
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
