"""VFGNN: holders of the same nodes."""
