"""Private training (DP-SGD): its settings, its plan and cost, its noisy sums, and its words."""
