"""Feeds, the iterators over batches: options, delivery, position, history, epochs, mixtures, saved
state, statistics and ranks.
"""
