"""The secure product under CrypTen, which wants a PyTorch of its own and so runs in an environment of its own."""
