"""Threads, how they end, and how they wake each other. Knows nothing of servers."""
