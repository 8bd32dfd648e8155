"""What can be told of a running server: its datasets, and what counts for them.

Metrics, the status service and the page only read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...datasets.dataset import Dataset
from ...datasets.warmup import WarmUp
from ..activity.tracker import Activity
from ..admission import AdmissionControl

if TYPE_CHECKING:  # which a server of files does not import
    from ...storage.objects.object_cache import ObjectCache


@dataclass(frozen=True, slots=True)
class ServerState:
    """datasets: by name.  activity: of their streams.  calls: admits those for rows; its counts are
    those of all calls of the service.  warm_up: of the datasets.  object_cache: of those in object
    stores; None without one.
    """

    datasets: Mapping[str, Dataset]
    activity: Activity
    calls: AdmissionControl
    warm_up: WarmUp
    object_cache: ObjectCache | None = None
