"""Differential privacy: events, mechanisms, calibration, accountant, ledger. No job uses them yet."""
