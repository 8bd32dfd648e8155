"""The saved state of a feed, and resuming at another context length."""
