"""Mixtures of a feed: as users write them, their blocks, and a forecast of what they will read."""
