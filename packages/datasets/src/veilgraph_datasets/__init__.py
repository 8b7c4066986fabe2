"""Data sets of veilgraph that are no part of it: public ones, block models, and worlds of payments."""
