"""Local differential privacy: nodes perturb their own features and labels before anybody sees them (LPGNN)."""
