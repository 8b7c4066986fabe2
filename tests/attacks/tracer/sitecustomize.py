"""Put into the processes of a site by PYTHONPATH: what FLARE registers there is noted, and with which token it speaks
(an attacker has its own site's), C's jobs can be told to attack, and the guard can be taken away.

``ATTACK_TRACES`` is the folder of the notes. With ``ATTACK_UNGUARDED`` the process runs as FLARE itself would have it.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

TRACES = os.environ.get("ATTACK_TRACES")


class Changes(importlib.abc.MetaPathFinder):
    def __init__(self, changes):
        self.changes = changes

    def find_spec(self, name, path, target=None):
        change = self.changes.pop(name, None)
        if change is None:
            return None
        spec: Any = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            change(module)

        spec.loader.exec_module = exec_module
        return spec


def note_cells(module):
    register, start = module.CoreCell.register_request_cb, module.CoreCell.start

    def start_cell(cell):
        start(cell)
        site, _, job = cell.get_fqcn().partition(".")
        if site == "C" and job:
            from tests.attacks.attacker import serve  # noqa: PLC0415  (FLARE has to be there)

            threading.Thread(target=serve, args=(cell, Path(f"{TRACES}/in {job[:8]}")), daemon=True).start()

    def register_request_cb(cell, channel, topic, cb, *args, **kwargs):
        with Path(f"{TRACES}/{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps([cell.get_fqcn(), channel, topic]) + "\n")
        return register(cell, channel, topic, cb, *args, **kwargs)

    module.CoreCell.register_request_cb, module.CoreCell.start = register_request_cb, start_cell


def note_tokens(module):
    set_filters = module.set_add_auth_headers_filters

    def set_add_auth_headers_filters(cell, client_name, auth_token, token_signature, ssid=None):
        shown = {
            "client_name": client_name,
            "__token__": auth_token,
            "__token_signature__": token_signature,
            "ssid": ssid,
        }
        with Path(f"{TRACES}/token {cell.core_cell.get_fqcn()}").open("w") as file:
            json.dump(shown, file)
        return set_filters(cell, client_name, auth_token, token_signature, ssid)

    module.set_add_auth_headers_filters = set_add_auth_headers_filters


def no_guard(module):
    module.install = lambda *_, **__: None
    module.installed = lambda: True


def loopback(module):
    module._COMMUNICATION = {}


def all_transports(module):
    module.register = lambda: None


def all_commands(module):
    module.limit_site = module.limit_server = lambda *_: None


if TRACES:
    changes = {"nvflare.fuel.f3.cellnet.core_cell": note_cells, "nvflare.fuel.sec.authn": note_tokens}
    if os.environ.get("ATTACK_UNGUARDED"):
        changes |= {
            "veilgraph.deploy.guard.hooks": no_guard,
            "veilgraph.deploy.guard.commands": all_commands,
            "veilgraph.deploy.guard.sockets": all_transports,
            "veilgraph.deploy.kit": loopback,
        }
    sys.meta_path.insert(0, Changes(changes))
