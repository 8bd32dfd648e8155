"""Adapters between feeds and the training loops of frameworks: one framework per file.

Each adapter is imported by its name, such as `tokenfeed.client.adapters.lightning`, and imports its
framework only then. No other module of the client imports an adapter.
"""
