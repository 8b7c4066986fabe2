"""What is made of the code: ``make docs``."""
