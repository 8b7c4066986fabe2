"""SAPGNN: holders of the same columns."""
