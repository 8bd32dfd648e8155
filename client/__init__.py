"""The trainer's side: batches from a tokenfeed server, as if the corpus were local.

    from tokenfeed import RemoteBatches

    for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
        ...

Importing this package imports neither torch nor grpc. Accessing RemoteBatches or validation_feeds
imports both; NumpyBatches, for those who have no torch, only grpc. `client.metrics` imports
prometheus_client.
"""

import sys

if __name__ == "client":
    # An alias of tokenfeed.client: tokenfeed/_aliases.py says how.
    _package = sys.modules.pop(__name__)
    from tokenfeed._aliases import alias

    alias(_package)
else:
    from importlib import import_module
    from typing import TYPE_CHECKING

    from tokenfeed.errors import (
        BadFrame,
        BeingMade,
        Busy,
        ContractMismatch,
        CorpusChanged,
        CorpusError,
        Deleted,
        Forbidden,
        InvalidRequest,
        LimitExceeded,
        ListMissing,
        NotATokenfeedServer,
        NotFound,
        RequestError,
        SamplesExhausted,
        ServerUnavailable,
        StreamMismatch,
        TokenfeedError,
        Unauthenticated,
        Unreachable,
    )

    from .transport.credentials import Credentials
    from .transport.timeouts import Timeouts

    if TYPE_CHECKING:
        from .batches.arrays import NumpyBatches, NumpyRichBatch
        from .batches.remote import RemoteBatches, RichBatch
        from .batches.validation import validation_feeds
        from .feed.mixture.recipe import Mixture

__all__ = [
    "BadFrame",
    "BeingMade",
    "Busy",
    "ContractMismatch",
    "CorpusChanged",
    "CorpusError",
    "Credentials",
    "Deleted",
    "Forbidden",
    "InvalidRequest",
    "LimitExceeded",
    "ListMissing",
    "Mixture",
    "NotATokenfeedServer",
    "NotFound",
    "NumpyBatches",
    "NumpyRichBatch",
    "RemoteBatches",
    "RequestError",
    "RichBatch",
    "SamplesExhausted",
    "ServerUnavailable",
    "StreamMismatch",
    "Timeouts",
    "TokenfeedError",
    "Unauthenticated",
    "Unreachable",
    "validation_feeds",
]


def __getattr__(name: str) -> object:
    if name in ("RemoteBatches", "RichBatch", "validation_feeds"):
        try:
            from .batches.remote import RemoteBatches, RichBatch
            from .batches.validation import validation_feeds
        except ModuleNotFoundError as error:
            from tokenfeed.commands.extras import missing

            if error.name != "torch":
                raise
            raise ModuleNotFoundError(missing(error, "torch"), name=error.name) from None
        own = {kind.__name__: kind for kind in (RemoteBatches, RichBatch)}
        return own.get(name, validation_feeds)
    if name == "Mixture":
        from .feed.mixture.recipe import Mixture

        return Mixture
    if name in ("NumpyBatches", "NumpyRichBatch"):
        from .batches import arrays

        return getattr(arrays, name)
    if name == "metrics":
        # `from . import metrics` would ask this function again.
        return import_module(".metrics", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from tokenfeed.commands.extras import shown

    return shown(__all__)
