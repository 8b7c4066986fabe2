"""A project of a bank and a shop."""

from pathlib import Path

from veilgraph.deploy.kit import Kit
from veilgraph.deploy.project import ProjectSettings, provision


def bank_and_shop(out: Path, **changes: object) -> dict[str, Kit]:
    """Name → kit, all of them provisioned anew, which takes seconds."""
    content = {"name": "fraud", "server": {"host": "localhost"}, "holders": ["bank", "shop"], **changes}
    project = ProjectSettings.model_validate({"administrators": ["ops@example.org"], **content})
    return {name: Kit.open(path) for name, path in provision(project, out).items()}
