"""The secure maximum under SPU, which cannot be installed beside veilgraph and so runs in an environment of its own."""
