"""From the target of a feed to its dataset: on servers, or in local files."""

from __future__ import annotations

import math

from tokenfeed.wire.request import Request

from ..stream.dataset_client import Agreement
from ..stream.row_stream import StreamClient
from ..stream.wanted_planes import DEFAULT_PLANES, WantedPlanes
from ..transport.addresses import Targets
from ..transport.credentials import Credentials, with_environment
from ..transport.timeouts import Timeouts
from .local_files import LocalFiles
from .target import is_local_target


def open_target(
    target: Targets,
    request: Request,
    *,
    timeouts: Timeouts,
    credentials: Credentials | None = None,
    client_name: str = "",
    is_tool: bool = False,
    fingerprint: bytes | None = None,
    agreement: Agreement | None = None,
    planes: WantedPlanes = DEFAULT_PLANES,
) -> StreamClient | LocalFiles:
    """Return the dataset of a target; does no I/O. Local files need no credentials and no name.

    target: as for RemoteBatches.  The other arguments: as for DatasetClient, but fields of
    credentials that are None come from the environment.
    Raises: InvalidRequest if the target is malformed.
    """
    if is_local_target(target):
        return LocalFiles(
            target,
            request,
            reconnect_seconds=(
                math.inf if timeouts.reconnect_seconds is None else timeouts.reconnect_seconds
            ),
            fingerprint=fingerprint,
            agreement=agreement,
            planes=planes,
        )
    return StreamClient(
        target,
        request,
        timeouts=timeouts,
        credentials=with_environment(credentials),
        client_name=client_name,
        is_tool=is_tool,
        fingerprint=fingerprint,
        agreement=agreement,
        planes=planes,
    )


def open_to_look(
    target: Targets, request: Request, wait_seconds: float, *, loss_mask: bool = False
) -> StreamClient | LocalFiles:
    """Return the dataset of a target for a command, which trains nothing.

    wait_seconds: how long no server may answer.  loss_mask: whether loss masks are read, where
    there are some.  Otherwise as `open_target`.
    """
    return open_target(
        target,
        request,
        timeouts=Timeouts(reconnect_seconds=wait_seconds),
        is_tool=True,
        planes=WantedPlanes(loss_mask=loss_mask),
    )
