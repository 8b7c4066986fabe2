"""Initial embeddings h^0: a method a file, with its plaintext twin (VFGNN 3.2 and Algorithm 3)."""
