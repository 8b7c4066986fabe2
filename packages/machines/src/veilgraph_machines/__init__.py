"""A holder's local model over several machines of its own, joined by ``torch.distributed`` (gloo).

The machine that joins the other parties leads; each machine has some of the nodes and the edges into them.
"""
