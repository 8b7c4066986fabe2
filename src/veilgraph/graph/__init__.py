"""What one party holds: nodes, edges, features, labels; data sets, and how they are divided."""
