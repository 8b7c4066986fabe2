"""What every part of a kind must do, as base classes for tests: inherit one, say which part, and run pytest."""
