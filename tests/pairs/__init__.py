"""Random small jobs, each over a pair of sessions, and what nobody may find in the two together."""
