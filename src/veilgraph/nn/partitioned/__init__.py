"""A holder's local model over several machines: each has some of the nodes and the edges into them.

``local`` is what the holder's own process has in place of its local models; the others ``serve`` it.
"""
