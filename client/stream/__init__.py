"""Rows in order, through failovers and reconnects. Knows nothing of torch."""
