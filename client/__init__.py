"""The trainer's side: batches from a tokenfeed server, as if the corpus were local.

    from tokenfeed import RemoteBatches

    for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
        ...

Importing this package imports neither torch nor grpc. Accessing RemoteBatches or validation_feeds
imports both. NumpyBatches imports only grpc, and works where torch is not installed.
`tokenfeed.client.metrics` imports prometheus_client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if __name__ == "client":
    # In a checkout, another name of tokenfeed.client; installed is tokenfeed/short/client. Modules
    # have the long names alone, or there would be two of each, so all imports here are of these.
    from tokenfeed._links import short_path

    __path__ = short_path("client")
    import_module("tokenfeed.client")  # before its modules: another thread may be importing it

from tokenfeed.client.transport.credentials import Credentials
from tokenfeed.client.transport.timeouts import Timeouts
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

if TYPE_CHECKING:
    from tokenfeed.client.batches.arrays import NumpyBatches, NumpyRichBatch
    from tokenfeed.client.batches.remote import RemoteBatches, RichBatch
    from tokenfeed.client.batches.validation import validation_feeds
    from tokenfeed.client.feed.mixture.recipe import Mixture

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
            from tokenfeed.client.batches.remote import RemoteBatches, RichBatch
            from tokenfeed.client.batches.validation import validation_feeds
        except ModuleNotFoundError as error:
            from tokenfeed.commands.extras import missing

            if error.name != "torch":
                raise
            raise ModuleNotFoundError(missing(error, "torch"), name=error.name) from None
        own = {kind.__name__: kind for kind in (RemoteBatches, RichBatch)}
        return own.get(name, validation_feeds)
    if name == "Mixture":
        from tokenfeed.client.feed.mixture.recipe import Mixture

        return Mixture
    if name in ("NumpyBatches", "NumpyRichBatch"):
        from tokenfeed.client.batches import arrays

        return getattr(arrays, name)
    if name == "metrics":
        # `from tokenfeed.client import metrics` would ask this function again.
        return import_module("tokenfeed.client.metrics")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from tokenfeed.commands.extras import shown

    return shown(__all__)
