"""Scripted servers, for what a healthy one never does."""

from tests.client.conftest import scripted, start_scripted

__all__ = ["scripted", "start_scripted"]
