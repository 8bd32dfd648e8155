"""Mixtures of a feed: as users write them, their blocks, and how one goes on after a state."""
