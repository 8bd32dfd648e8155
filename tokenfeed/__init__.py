"""Token batches for language-model training, served so that a row is a pure function of its sample.

    from tokenfeed import RemoteBatches

    for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0"):
        ...

`tokenfeed.client` is the trainer's side, `tokenfeed.server` the other one; `import client` and
`python -m server` are the same modules by shorter names. What lies directly in here is the contract
in code, on which both sides and the tests agree: numpy, protobuf and a checksum; no file, socket,
thread or clock. A token passes through it in this order:

    stream/     what a stream is: its specification, its positions, its identity
    sampling/   which tokens each sample has: the orders, and the plan
    wire/       rows and requests as bytes
    errors      what may go wrong, and who must act

Importing this imports none of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Credentials, RemoteBatches, Timeouts

__version__ = "0.1.0"
__all__ = ["Credentials", "RemoteBatches", "Timeouts", "__version__"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(".client", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from .commands.extras import is_installed

    # help() touches each of these, and RemoteBatches imports torch.
    return [name for name in __all__ if name != "RemoteBatches" or is_installed("torch")]
