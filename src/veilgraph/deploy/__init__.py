"""Across organisations: NVIDIA FLARE's provisioning, sites and jobs around the same roles."""
