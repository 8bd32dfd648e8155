"""Token batches for language-model training. Each row is a pure function of its sample index.

    from tokenfeed import RemoteBatches

    for x, y in RemoteBatches("host:50051", 32, 2048, device="cuda:0", order="shuffled"):
        ...

`tokenfeed.client` is the trainer's side, and `tokenfeed.server` is the server. `import client`
offers the same names as tokenfeed.client, and `python -m server` runs the server. The folder
commands/ has what the command line needs, and tools/ has the commands that operators and auditors
run. The other modules are the protocol in code, shared by client, server and tests. The protocol
modules need numpy, protobuf and a checksum, and use no file, socket, thread or clock. A token
passes through these modules in this order:

    stream/     what a stream is: specification, positions, identity
    sampling/   the tokens of each sample: orders and the plan
    wire/       rows and requests as bytes
    errors      all exceptions, and who must act

Importing `tokenfeed` imports none of these modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import (
        Credentials,
        Mixture,
        NumpyBatches,
        RemoteBatches,
        Timeouts,
        validation_feeds,
    )

__version__ = "0.1.0"
__all__ = [
    "Credentials",
    "Mixture",
    "NumpyBatches",
    "RemoteBatches",
    "Timeouts",
    "__version__",
    "validation_feeds",
]


if not TYPE_CHECKING:  # or a misspelled name would be no error of a type checker

    def __getattr__(name: str) -> Any:
        if name in __all__:
            from ._links import require_package

            require_package("client")
            return getattr(import_module(".client", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from .commands.extras import shown

    return shown(__all__)
