"""A first draft of a party file, guessed from tables: the command ``veilgraph data init``."""
