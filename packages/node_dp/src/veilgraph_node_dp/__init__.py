"""LPGNN: nodes perturb their own features for one holder that knows the graph."""
