"""What the federation is compared with: the plaintext twin, isolated and pooled training."""
