"""Labels under randomised response over edges across: one symbol a node, for banks that know edges between them."""
