"""``audit.json``: what an audit of a run found, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from veilgraph.audit.finding import AuditResult
from veilgraph.audit.verdicts import AUDIT_FILE
from veilgraph.core.errors import RunError
from veilgraph.core.settings import first_problem

_VERSION: Final = 2
_RESULT: Final = TypeAdapter(AuditResult)


def read_audit(run: Path) -> AuditResult | None:
    """The audit of a run; None where it was not audited.

    Raises:
        RunError: the file is damaged, or of another version.
    """
    path = run / AUDIT_FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("version", None) != _VERSION:
            raise RunError(f"{path}: not an audit of version {_VERSION}; audit again with: veilgraph audit {run}")
        return _RESULT.validate_python(content)
    except ValidationError as error:
        problem = first_problem(error)
        raise RunError(f"{path}: not an audit ({problem}); audit again with: veilgraph audit {run}") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: damaged ({error}); audit again with: veilgraph audit {run}") from error
