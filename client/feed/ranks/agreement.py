"""Checks that all ranks of a process group read the same stream, or they would silently train on
different data.

A collective is not used: a feed is read lazily, and a collective that only some ranks enter waits
for ever. Instead the ranks use the key-value store of the process group, without waiting for each
other: the rank that comes first, whichever it is, writes what it reads, and all others compare.
Only a change during a run (of a mixture, of the context length, a redaction) waits for all ranks.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from tokenfeed.errors import StreamMismatch, Unreachable
from tokenfeed.stream.stage import FACTS
from tokenfeed.stream.stream import Stream
from tokenfeed.wire.request import Request

from ...runtime.threads import Outcome, start_thread
from ...transport.addresses import Targets
from ..mixture.recipe import Definition
from ..state import plain_stream
from .coordinates import DataParallel, has_process_group

_LOG = logging.getLogger("tokenfeed.client")

_STORE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_ALL_RANKS_SECONDS = 480.0
"""Below the 600 s after which the watchdog of NCCL ends a job."""
_MADE: dict[str, Iterator[int]] = {}
"""Number of feeds with equal arguments made in this process. Ranks run the same program, so the
third such feed of one rank is the third of every rank.
"""


class RankAgreement:
    """Compares with other ranks what one feed reads, and the changes that are made during a run."""

    def __init__(self, store: Callable[[], Any], key: str, rank: int, world_size: int = 1) -> None:
        """Remember where to compare; does no I/O.

        store: returns a torch.distributed.Store that all ranks share.  key: of this feed, the same
        on all ranks and different for each feed.  rank, world_size: data-parallel.
        """
        self._store = store
        self._key = key
        self._rank = rank
        self._world_size = world_size
        self._rounds = itertools.count()

    def require_same(self, definition: Definition, stream: Stream, planes: str) -> None:
        """Compare a stream with that of the first rank that called this, from any thread.

        Does not wait for other ranks: one exchange with the store, queued behind other requests of
        this process to the store. If the store is unavailable or does not answer within 3 s,
        nothing is compared, and this is logged.
        definition: what the feed was asked for.  stream: what it reads, with its corpora.  planes:
        hexadecimal digits that are equal on two ranks if the same planes mask their targets.
        Raises: StreamMismatch, naming both ranks and what differs.
        """
        own = _compared(definition, stream, planes)
        first = self._first(f"{self._key}/stream", json.dumps(own))
        if first is None:
            return
        first_rank, its = first
        theirs = json.loads(its)
        name = next((name for name in own if own[name] != theirs.get(name)), "mixture")
        same_order = "The same error occurs if ranks create their feeds in different orders"
        if own.get("mixture") != theirs.get("mixture"):
            raise StreamMismatch(
                "mixture",
                f"of rank {self._rank} is not that of rank {first_rank}: weights, stages, sources, "
                "their orders, seeds, max_epochs, corpora, planes or redactions differ, or the "
                "sources were given in another order. Give all ranks the same mixture. "
                f"{same_order}",
            )
        if name == "planes":
            raise StreamMismatch(
                name,
                f"of rank {self._rank} are not those of rank {first_rank}: their corpus is the "
                "same, but loss masks or document starts differ. Give all ranks the same files, "
                "or servers of them, and the same loss_mask and mask_borders",
            )
        if name == "fingerprint":
            raise StreamMismatch(
                name,
                f"rank {self._rank} reads corpus {own[name]}, and rank {first_rank} reads "
                f"{theirs[name]}. Give all ranks the same files, or servers of them; fingerprint= "
                f"selects the corpus. {same_order}",
            )
        raise StreamMismatch(
            name,
            f"rank {self._rank} has {own[name]!r}, and rank {first_rank} has {theirs[name]!r}. "
            f"Give all ranks the same {name}. {same_order}",
        )

    def require_same_state(self, number: int, sample: int, compared: str) -> None:
        """Compare a state that this rank loads with that of the rank which was first to load its
        state of this number, like `require_same`.

        number: how many states this feed has loaded before.  sample: where the feed goes on.
        compared: what `FeedStream.compared` returns then; earlier stages that are kept count too.
        Raises: StreamMismatch if sample or compared differs.
        """
        first = self._first(f"{self._key}/load/{number}", f"{sample} {compared}")
        if first is not None:
            first_rank, its = first
            raise StreamMismatch(
                "state",
                f"of rank {self._rank}, at sample {sample}, is not that of rank {first_rank}, at "
                f"sample {its.partition(' ')[0]}, or they go on with different streams. Load the "
                "same state on all ranks, with the same arguments and the same allow",
            )

    def _first(self, key: str, own: str) -> tuple[str, str] | None:
        """Return the rank that was the first one to compare under a key, and its value; None if it
        is this one's, or the store does not answer, which is logged.
        """
        outcome: Outcome[bytes] = Outcome()
        # In a separate thread: the store has no timeout, and its host may have stopped.
        exchange = partial(self._exchange, key, f"{self._rank} {own}")
        start_thread(partial(outcome.run, exchange), "tokenfeed-compare")
        first, problem = None, f"no answer within {_STORE_SECONDS:.0f} s"
        try:
            first = outcome.wait_for(_STORE_SECONDS)
        except Unreachable as error:
            problem = error.problem
        if first is None:
            _LOG.warning(
                "cannot compare the corpus with other ranks rank=%d reason=%s", self._rank, problem
            )
            return None
        first_rank, _, its = first.decode().partition(" ")
        return None if its == own else (first_rank, its)

    def await_all_ranks(
        self, name: str, value: object, agreed: Callable[[], None], is_over: Callable[[], bool]
    ) -> None:
        """Wait until all ranks have made the same call of this (the n-th call of each), and compare
        their values. Either all of them go on, or none does. A call of `refuse` counts as a call.

        name: of what is changed, for errors.  value: equal values have the same repr in every
        process.  agreed: called if all go on, also if this rank is interrupted meanwhile.  is_over:
        called while this waits; returns whether this rank gives up.
        Raises: StreamMismatch if the values differ or a rank refuses; Unreachable if a rank does
        not call this within 480 s or gives up, or the store is unavailable.
        """
        key = f"{self._key}/all/{next(self._rounds)}"
        own = hashlib.sha256(repr(value).encode()).hexdigest()
        own_decision = decision = "gave up"
        try:
            store = self._store()
            try:
                own_decision = self._compared(store, key, own, is_over)
            finally:
                # The first decision counts, also if this rank is interrupted.
                decision = store.compare_set(f"{key}/decision", "", own_decision).decode()
                if decision == "same" and own_decision not in ("same", "gave up"):
                    decision = own_decision  # a peer of this rank has agreed to another change
        except (RuntimeError, ValueError, AttributeError) as error:
            raise Unreachable("store", f"ranks cannot be compared: {error}") from error
        finally:
            if decision == "same":
                agreed()
        if decision == "gave up":
            raise Unreachable("ranks", f"not all of them have changed the {name} in time")
        if decision != "same":
            raise StreamMismatch(name, f"{decision}; nothing is changed on any rank")

    def refuse(self, problem: str) -> None:
        """Call this in place of `await_all_ranks` on a rank that cannot make the change: then no
        rank makes it. Does not wait. If the store is unavailable, the other ranks wait for up to
        480 s.

        problem: why this rank cannot make the change.
        """
        key = f"{self._key}/all/{next(self._rounds)}/decision"
        with suppress(RuntimeError, ValueError, AttributeError):
            self._store().compare_set(key, "", f"rank {self._rank} cannot change it: {problem}")

    def _compared(self, store: Any, key: str, own: str, is_over: Callable[[], bool]) -> str:
        """Return what this rank decides: the last one that calls this, or one that differs from the
        first one, decides for all. The others wait for that; each of them asks for one key.
        """
        first = store.compare_set(f"{key}/value", "", f"{self._rank} {own}").decode()
        first_rank, _, its = first.partition(" ")
        if its != own:
            return f"rank {self._rank} changes it to another one than rank {first_rank} does"
        # Several processes may be one rank: tensor-parallel peers.
        is_first = store.add(f"{key}/count/{self._rank}", 1) == 1
        if is_first and store.add(f"{key}/count", 1) == self._world_size:
            return "same"
        end = time.monotonic() + _ALL_RANKS_SECONDS
        # Not store.wait: other requests of this process to the store would wait behind it.
        while not store.check([f"{key}/decision"]):
            if is_over() or time.monotonic() > end:
                break
            time.sleep(_POLL_SECONDS)
        return "gave up"

    def _exchange(self, key: str, own: str) -> bytes:
        """Return what the first rank wrote.  Raises: Unreachable if the store is unavailable."""
        try:
            # An empty expected value: writes if the key is unset. Returns the value after that.
            first: bytes = self._store().compare_set(key, "", own)
            return first
        except (RuntimeError, ValueError, AttributeError) as error:
            raise Unreachable("store", str(error)) from error


def _compared(definition: Definition, stream: Stream, planes: str) -> dict[str, str]:
    """Return what ranks compare, by the names of arguments, the first difference first. Names of
    datasets are not compared: they are no part of a stream.
    """
    source, stage = stream.sources[-1], stream.stages[-1]
    lengths = ", ".join([str(stage.context_length), *map(str, definition.lengths)])
    if definition.is_mixture:
        limits = [
            (source.number, definition.max_epochs[source.dataset])
            for source in stream.sources
            if source.dataset in definition.max_epochs
        ]
        return {"mixture": compared(stream, planes, limits), "context_length": lengths}
    assert source.corpus is not None
    return {
        "context_length": lengths,
        **{name: str(source.facts[name]) for name in FACTS},
        "group_tokens": str(source.group_blocks * source.order.BLOCK_TOKENS),
        "long": source.long_documents,
        "fingerprint": source.corpus.fingerprint.hex(),
        "document borders": source.corpus.pieces_at(stage.context_length).hex(),
        "planes": planes,
    }


def compared(stream: Stream, *targets: object) -> str:
    """Return a hash, in hexadecimal digits, of a stream without the names of its datasets.

    stream: with its corpora.  targets: other values to be hashed; each has the same repr in every
    process.
    """
    unnamed = tuple(replace(source, dataset="") for source in stream.sources)
    values = (plain_stream(replace(stream, sources=unnamed)), *targets)
    return hashlib.sha256(repr(values).encode()).hexdigest()


def rank_agreement(
    ranks: DataParallel, request: Request, targets: Targets, fingerprint: str | None
) -> RankAgreement | None:
    """Return what compares a feed with other ranks; None if there is one rank, or no process group.

    ranks: of the feed.  request: only its batch size is used.  targets: of the feed. If the
    coordinates were given as arguments, ranks with equal targets are compared: more is not known.
    fingerprint: that the user requires, or None; ranks that require different ones are not
    compared.

    Call this once for each feed, in the order of creation. Feeds of the same batch size are told
    apart by their number, and never by what they read: ranks that differ would never meet.
    """
    if ranks.world_size == 1 or not (ranks.members or has_process_group()):
        return None
    together = ranks.members or (ranks.world_size, targets)
    feed = repr((request.position.batch_size, together, fingerprint))
    # setdefault and next are atomic, so several threads may create feeds.
    number = next(_MADE.setdefault(feed, itertools.count()))
    digest = hashlib.sha256(f"{feed} {number}".encode()).hexdigest()
    return RankAgreement(_default_store, f"tokenfeed/stream/{digest}", ranks.rank, ranks.world_size)


def _default_store() -> Any:
    """Return the store of init_process_group.  Raises: ValueError after the process group was
    destroyed.
    """
    from torch.distributed import distributed_c10d

    # Torch 2.3, the lowest supported version, has no public API; later ones keep this one.
    return distributed_c10d._get_default_store()
