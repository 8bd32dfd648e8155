"""Specification, identity and positions of a stream."""
