"""Whether all ranks of a process group read the same corpus: else they train on different data, and
nobody notices.

A collective would say so, but a feed is read lazily, and a collective that only some ranks enter
waits for ever. The key-value store by which the ranks found each other waits for nobody: the first
rank writes its fingerprint, and all others compare.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tokenfeed.errors import StreamMismatch, Unreachable
from tokenfeed.wire.request import StreamRequest

from ..runtime.threads import Outcome, start_thread
from ..transport.replicas import Targets
from .ranks import DataParallel, has_process_group

_LOG = logging.getLogger("tokenfeed.client")

_STORE_SECONDS = 3.0
_MADE: dict[str, Iterator[int]] = {}
"""How many feeds of a kind were made in this process. Ranks run one program, so that the third of a
kind is the third one everywhere.
"""


class RankAgreement:
    """What one feed and its twins on the other ranks agree about."""

    def __init__(self, store: Callable[[], Any], key: str, rank: int) -> None:
        """Remember where to compare; does no I/O.

        store: returns a torch.distributed.Store that all ranks share.  key: of this feed, the same
        on all ranks and no other feed's.  rank: data-parallel, to be named by.
        """
        self._store = store
        self._key = key
        self._rank = rank

    def require_same(self, dataset: str, fingerprint: bytes) -> None:
        """Compare the corpus with that of the rank that came first, from any thread.

        Waits for no other rank: it is one exchange with the store, behind whatever else this
        process asks the store just then. Where the store cannot be asked, or does not answer in
        3 s, the log says so, and nothing is compared.
        dataset: its name, as served: feeds of others are not compared.  fingerprint: 32 bytes.
        Raises: StreamMismatch, naming both ranks and both fingerprints.
        """
        own = fingerprint.hex()
        key = f"{self._key}/{dataset}"
        outcome: Outcome[bytes] = Outcome()
        # In a thread of its own: the store has no timeout, and whoever has it may be stopped.
        exchange = partial(self._exchange, key, f"{self._rank} {own}")
        start_thread(partial(outcome.run, exchange), "tokenfeed-compare")
        first, problem = None, f"no answer within {_STORE_SECONDS:.0f} s"
        try:
            first = outcome.wait_for(_STORE_SECONDS)
        except Unreachable as error:
            problem = error.problem
        if first is None:
            _LOG.warning(
                "rank=%d cannot compare its corpus with other ranks: %s", self._rank, problem
            )
            return
        first_rank, _, its = first.decode().partition(" ")
        if its != own:
            raise StreamMismatch(
                "fingerprint",
                f"rank {self._rank} reads corpus {own}, and rank {first_rank} reads {its}. Give "
                "all ranks servers of the same files; fingerprint= says which corpus it has to "
                "be. Ranks that make their feeds in another order look like this too",
            )

    def _exchange(self, key: str, own: str) -> bytes:
        """Return what the first rank has set.  Raises: Unreachable if the store cannot be asked."""
        try:
            # An empty expected value: set where there is none yet. Returns what is there then.
            first: bytes = self._store().compare_set(key, "", own)
            return first
        except (RuntimeError, ValueError, AttributeError) as error:
            raise Unreachable("store", str(error)) from error


def rank_agreement(
    ranks: DataParallel, request: StreamRequest, targets: Targets
) -> RankAgreement | None:
    """Return how a feed's ranks compare their corpora; None where there is one rank, or no process
    group.

    targets: of the feed. They tell feeds apart whose coordinates were given by hand, since nobody
    knows then which ranks belong together.

    To be called once for each feed, in the order in which they are made: feeds of equal arguments
    are told apart by their number.
    """
    if ranks.world_size == 1 or not (ranks.members or has_process_group()):
        return None
    together = ranks.members or (ranks.world_size, targets)
    feed = repr((request.spec.plain(), request.position.batch_size, together))
    # setdefault and next are one step each, so that threads may make feeds.
    number = next(_MADE.setdefault(feed, itertools.count()))
    digest = hashlib.sha256(f"{feed} {number}".encode()).hexdigest()
    return RankAgreement(_default_store, f"tokenfeed/corpus/{digest}", ranks.rank)


def _default_store() -> Any:
    """Return the store that init_process_group was given or made.  Raises: ValueError once the
    process group is gone.
    """
    from torch.distributed import distributed_c10d

    # Torch 2.3, the lowest allowed, has no public way; later ones keep this one too.
    return distributed_c10d._get_default_store()
