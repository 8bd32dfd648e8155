"""Mixtures of a feed: as users write them, in saved states, where they end, what they had."""
