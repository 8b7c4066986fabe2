"""What all paradigms share: the job, what parties state and accept, roles, and what every message carries."""
