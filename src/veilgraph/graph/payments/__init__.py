"""A made-up world of payments between customers of several banks, of which some are laundering across banks."""
