"""Rows and requests as bytes, and back."""
