"""Datasets on each storage of local files."""

from tests.server.conftest import storage
from tests.server.datasets.redactions.conftest import open_

__all__ = ["open_", "storage"]
