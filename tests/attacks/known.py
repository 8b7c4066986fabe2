"""What of the engine's messages is known to be sent."""

from __future__ import annotations

KNOWN = {
    "_net_manager": {
        "bulk_item", "bulk_test", "cells", "change_root", "comm_config", "config_vars", "conns", "echo", "heartbeat",
        "list_pools", "msg_stats", "peers", "process_info", "route", "show_pool", "speed", "start_route", "stop",
        "stop_cell", "stress", "url_use",
    },
    "admin": {"*"},
    "aux_communication": {"*"},
    "cellnet.channel": {"bulk", "bye"},
    "client_command": {"*"},
    "credential_manager": {"key_exchange"},
    "download_service__": {"download_service__download", "download_service__source_failure"},
    "hci_channel": {"*"},
    "server_command": {"*", "get_task", "submit_update"},
    "server_parent_listener": {"*"},
    "sm__STREAM": {"sm__ACK", "sm__DATA", "sm__ERROR"},
    "task": {"challenge", "heart_beat", "quit", "register", "report_job_failure"},
    "veilgraph": {"hello", "frame"},
}  # fmt: skip
"""All that FLARE 2.9.0 and veilgraph register in any process; what is let in of it is in ``guard.policy``."""
