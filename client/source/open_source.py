"""From the target of a feed to its datasets: on servers, or in local files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tokenfeed.wire.request import Request

from ..transport.addresses import Targets
from ..transport.credentials import Credentials, with_environment
from ..transport.timeouts import Timeouts
from .datasets import Requirements
from .file_target import is_local_target
from .files import Files
from .plane_selection import PlaneSelection
from .servers import Servers

if TYPE_CHECKING:
    from typing import Unpack


def open_source(
    target: Targets,
    request: Request,
    *,
    timeouts: Timeouts,
    credentials: Credentials | None = None,
    client_name: str = "",
    is_tool: bool = False,
    **required: Unpack[Requirements],
) -> Servers | Files:
    """Return the datasets of a target; does no I/O. Local files need no credentials and no name.

    target: as for RemoteBatches.  The other arguments: as for Servers, but fields of
    credentials that are None come from the environment.
    Raises: InvalidRequest if the target is malformed.
    """
    if is_local_target(target):
        seconds = timeouts.reconnect_seconds
        limit_seconds = math.inf if seconds is None else seconds
        return Files(target, request, reconnect_seconds=limit_seconds, **required)
    return Servers(
        target,
        request,
        timeouts=timeouts,
        credentials=with_environment(credentials),
        client_name=client_name,
        is_tool=is_tool,
        **required,
    )


def open_to_look(
    target: Targets, request: Request, wait_seconds: float, *, loss_mask: bool = False
) -> Servers | Files:
    """Return the dataset of a target for a command, which trains nothing.

    wait_seconds: how long no server may answer.  loss_mask: whether loss masks are read, where
    there are some.  Otherwise as `open_source`.
    """
    return open_source(
        target,
        request,
        timeouts=Timeouts(reconnect_seconds=wait_seconds),
        is_tool=True,
        planes=PlaneSelection(loss_mask=loss_mask),
    )
