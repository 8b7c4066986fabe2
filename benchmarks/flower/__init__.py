"""Averaging by Flower, which wants other versions of libraries than veilgraph: an environment of its own."""
