"""Games on everything that an ε is claimed of: which of two neighbouring inputs was released?

A canary is one unit of what the ε is about, made so that it is as easy to tell as the unit and the relation allow. The
code that is played with is what jobs run: publishers with a ledger, machines of a sealed job, mechanisms of nodes.
"""
