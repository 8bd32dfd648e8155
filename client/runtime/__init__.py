"""Threads: how they start, end and wake each other. Knows nothing of servers."""
