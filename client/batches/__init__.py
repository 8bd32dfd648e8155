"""Feeds as trainers use them. Each module is imported only when its feed is.

remote.py      RemoteBatches: over tensors
arrays.py      NumpyBatches: over NumPy arrays, without torch
validation.py  validation_feeds: a feed for each of several datasets
"""
