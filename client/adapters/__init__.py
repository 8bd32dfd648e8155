"""The training loops that people have, on what a feed already gives: one framework a file.

Each is imported by its name, such as `tokenfeed.client.adapters.lightning`, and imports its
framework then. Nothing else of the client imports an adapter.
"""
