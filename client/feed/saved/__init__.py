"""The saved state of a feed, the history in it, and resuming at another context length."""
