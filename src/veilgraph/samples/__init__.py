"""Shipped jobs, the demonstration, and tables made of data sets."""
