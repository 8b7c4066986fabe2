"""Reading YAML that a person wrote."""

from __future__ import annotations

from pathlib import Path

import yaml

from veilgraph.core.errors import ConfigError


def read_yaml(path: Path, what: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> object:
    """What a YAML file says, in plain Python values.

    Args:
        path: of the file.
        what: what kind of file it ought to be, for the error.
        loader: how scalars are understood.

    Raises:
        ConfigError: the file cannot be read, or is not YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506 - derived from SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a {what}") from error
    except (yaml.YAMLError, ValueError) as error:  # a ValueError for a date that does not exist
        raise ConfigError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML (lists or mappings nested hundreds deep)") from None
