"""A holder's local model over several machines: each has some of the nodes and the edges into them.

The machine that joins the other parties leads the others; all are of one party, and know each other by a secret.
"""
