"""Differential privacy: events, mechanisms, calibration, accountant, ledger, publisher."""
