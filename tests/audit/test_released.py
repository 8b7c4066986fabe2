"""Canaries among nodes that perturb their own values: a release is held against its ε by who learns from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.paradigms.test_local_runs import LEARNER
from tests.roles.federation import Settings
from tests.roles.local_parties import PRIVATE_LABELS, RANGE
from veilgraph.audit.audit import Plan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.config import JobSettings, parse_job
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.embedded import synthetic_data
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.graph.partition import split_for_learner
from veilgraph.paradigms.jobs import resume, train
from veilgraph.paradigms.run_directory import RunDirectory
from veilgraph.privacy.local import canaries as module
from veilgraph.privacy.local.additive import Additive
from veilgraph.privacy.local.canaries import NodeCanaries
from veilgraph.privacy.local.labels import LabelResponse
from veilgraph.privacy.local.multi_bit import MultiBit

NODES, CANARIES = 900, 400
