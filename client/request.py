"""What a trainer wants: one rank's rows of one stream."""

from __future__ import annotations

from dataclasses import dataclass

from tokenfeed.errors import SamplesExhausted
from tokenfeed.identity import stream_identity
from tokenfeed.orders import Order
from tokenfeed.plan import SEED_END
from tokenfeed.position import SAMPLE_END, Position, require_range
from tokenfeed.v1 import tokenfeed_pb2 as pb

from .parts import StreamParts


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What is wanted: one rank's rows of one stream. What exists is valid.

    dataset: "" is the only one served.  seed: in [0, 2^64).  context_length: T, at least 1.
    num_batches: at least 0; None is without end.
    Raises: InvalidRequest, before anything is sent: a negative number would travel as a huge one.
    """

    dataset: str
    order: Order
    seed: int
    context_length: int
    position: Position
    num_batches: int | None

    def __post_init__(self) -> None:
        """Check every range."""
        require_range("context_length", self.context_length, 1, SAMPLE_END)
        require_range("seed", self.seed, 0, SEED_END)
        if self.num_batches is not None:
            require_range("num_batches", self.num_batches, 0, SAMPLE_END)
        left = self.position.batches_left
        if left < (1 if self.num_batches is None else self.num_batches):
            raise SamplesExhausted(
                "num_batches", f"only {left} batches from the first sample on stay below 2^63"
            )

    @property
    def end_batch(self) -> int:
        """Batches of the stream: those asked for, or all that there are below sample 2^63."""
        return self.position.batches_left if self.num_batches is None else self.num_batches

    def identity(self, fingerprint: bytes) -> bytes:
        """Return the identity of the stream over a corpus of that fingerprint, 32 bytes."""
        return stream_identity(self.order, self.seed, self.context_length, fingerprint)

    def parts(self, fingerprint: bytes) -> StreamParts:
        """Return what that identity is made of."""
        return StreamParts(
            order=self.order.NAME,
            seed=self.seed if self.order.USES_SEED else 0,
            context_length=self.context_length,
            fingerprint=fingerprint.hex(),
        )

    def message(self, first_row: int, end_batch: int, corpus: pb.Dataset) -> pb.GetBatchRequest:
        """Return the request for stream rows from first_row on, as far as batch end_batch.

        corpus: what it has to be of, by its fingerprint, and by its digest where both sides know.
        """
        batch, row = divmod(first_row, self.position.batch_size)
        return pb.GetBatchRequest(
            batch_size=self.position.batch_size,
            context_length=self.context_length,
            seed=self.seed,
            dataset=self.dataset,
            order=self.order.NAME,
            first_sample=self.position.batch_first_sample(batch),
            first_row=row,
            num_batches=end_batch - batch,
            rank=self.position.rank,
            world_size=self.position.world_size,
            expected_identity=self.identity(corpus.fingerprint),
            expected_digest=corpus.digest,
        )
