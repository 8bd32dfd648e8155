"""Rows in order, whatever happens to servers. Knows nothing of torch."""
