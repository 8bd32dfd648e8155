"""What a batch has besides x and y, computed on first access, and a batch of NumPy arrays.

RichBatch in rich_batch.py has the same attributes as tensors. Knows nothing of torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tokenfeed.errors import InvalidRequest
from tokenfeed.wire.row_block import RowBlock

from .documents import BatchDocuments, joined_token_counts
from .target_mask import IGNORED_TARGET, target_counts, without_tokens

FRAMEWORKS = ("transformers",)
"""Whose names `as_kwargs` knows."""

Array = TypeVar("Array")


class HostPart(NamedTuple):
    """What the host knows of a batch that is on its way to the device.

    last_tokens: int64[B], the last token of each row.  documents: None if they are not known in all
    rows.  target_counts: computes int64[B], how many targets of each row count.  token_counts:
    int64[B], how many tokens of each row, of its T + 1, are no padding; None: there is no padding.
    """

    last_tokens: npt.NDArray[np.int64]
    documents: BatchDocuments | None
    target_counts: Callable[[], npt.NDArray[np.int64]]
    token_counts: npt.NDArray[np.int64] | None

    @classmethod
    def of(
        cls,
        parts: Sequence[RowBlock],
        *,
        masks: Collection[int] = (),
        knows_documents: bool = True,
        row_documents_max: int | None = None,
    ) -> HostPart:
        """Copy it from received rows.

        parts: B rows in all.  masks: kinds of planes that mask targets.  knows_documents: whether
        all sources of the stream know where documents begin. If one does not, its rows have no
        starts, and would pass for one document each where rows of other sources have some.
        row_documents_max: limit of documents in the x of a row, padding included, if one is known.
        """
        last_tokens = np.concatenate([part.tokens[:, -1] for part in parts]).astype(np.int64)
        documents = None
        if knows_documents:
            documents = BatchDocuments.of_parts(parts, row_documents_max=row_documents_max)
        counts = partial(target_counts, [without_tokens(part, masks) for part in parts], masks)
        token_counts = joined_token_counts(parts) if documents is None else documents.token_counts
        return cls(last_tokens, documents, counts, token_counts)


Note: TypeAlias = Callable[[Sequence[RowBlock]], HostPart | None]
"""What sees the rows of each batch, and makes its HostPart if that is wanted."""


class BatchAttributes(ABC, Generic[Array]):
    """A batch that unpacks as x and y, and computes the rest from what the host knows.

    An attribute is computed on first access and kept; a method computes at each call. Nothing waits
    for a device. The arrays belong to the caller.

    Attributes that depend on documents: positions, segment_ids, cu_seqlens, max_seqlen, and the
    methods. If it is not known where documents begin, they raise InvalidRequest: a mask that takes
    each row for one document would hide that silently. If the stream has document starts, a row
    without any is one document.
    """

    def __init__(
        self,
        x: Array,
        y: Array,
        host: HostPart,
        *,
        samples: Callable[[], npt.NDArray[np.integer]],
        sources: Callable[[], npt.NDArray[np.integer]],
        state_before: Callable[[], dict[str, Any]],
        state_after: Callable[[], dict[str, Any]],
    ) -> None:
        """x, y: integers [B, T]; y may hold -100.  host: of the same rows.

        samples, sources: int[B] of the rows.  state_before, state_after: state of the feed before
        and after this batch. These four are called at most once, on first access, on the thread
        that asks; they must not refer to what changes until then.
        """
        self.x = x
        self.y = y
        self.documents = host.documents
        """Where documents begin, in host memory; None if the stream does not have it."""
        self._host = host
        self.own_rows: int | None = None
        """How many rows belong to an epoch of tail="pad", or come before another context length;
        the others have no target. None: all.
        """
        self._samples = samples
        self._sources = sources
        self._state_before = state_before
        self._state_after = state_after

    def __iter__(self) -> Iterator[Array]:
        """Unpack as x, y."""
        return iter((self.x, self.y))

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it refers to its feed.  Raises: InvalidRequest."""
        raise InvalidRequest("batch", "cannot be pickled or copied; take what you need of it")

    def __repr__(self) -> str:
        """Show the shape, without a look at the tokens."""
        documents = "unknown documents"
        if self.documents is not None:
            documents = f"{self.documents.starts.size} document starts"
        shape = " x ".join(map(str, getattr(self.x, "shape", ())))
        return f"<{type(self).__name__} {shape}, {documents}>"

    @abstractmethod
    def _delivered(self, array: npt.NDArray[Any]) -> Array:
        """Return a new array of the host as one that the caller takes."""

    @abstractmethod
    def _whole_rows(self) -> Array:
        """Return x with the last token of each row."""

    def _positions(self, documents: BatchDocuments) -> npt.NDArray[np.signedinteger]:
        return documents.positions()

    # --- tokens and targets ---

    @cached_property
    def tokens(self) -> Array:
        """The whole rows, [B, T + 1]: x, and the last token of each row, which no mask hides."""
        return self._whole_rows()

    @cached_property
    def loss_mask(self) -> Array:
        """Where y is not -100: bool [B, T]."""
        y: Any = self.y
        mask: Array = y != IGNORED_TARGET
        return mask

    @cached_property
    def num_valid_targets(self) -> int:
        """How many targets of this batch, which is this rank's, are not -100, as a Python int: by
        it the sum of their losses becomes a mean.
        """
        return int(self._host.target_counts()[: self.own_rows].sum())

    @cached_property
    def padding_mask(self) -> Array:
        """Which positions of x are padding: bool [B, T], True is padding, as torch's attention and
        torchtitan have it. Rows of windows have none; rows that `epoch` adds have tokens.
        """
        x: Any = self.x
        counts = self._host.token_counts
        if counts is None:
            return self._delivered(np.zeros(x.shape, np.bool_))
        return self._delivered(np.arange(x.shape[1]) >= counts[:, np.newaxis])

    def as_kwargs(self, framework: str) -> dict[str, Any]:
        """Return the keyword arguments that a framework's model takes in its forward method:

            loss = model(**batch.as_kwargs("transformers")).loss

        framework: has to be "transformers". The arguments are then input_ids, use_cache=False, and
        y as both labels and shift_labels: without shift_labels the model would shift y once more,
        and without labels it returns no loss. If the batch knows where documents begin, there are
        also position_ids, by which eager, sdpa and flex attention keep documents apart, and
        cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k, which flash attention needs for
        more than one row.
        Raises: InvalidRequest for another framework; or if rows hold pieces of documents, and one
        of the stream's datasets does not know where its documents begin.
        """
        if framework not in FRAMEWORKS:
            problem = f"{framework!r} is not known, only {', '.join(FRAMEWORKS)}"
            raise InvalidRequest("framework", problem)
        y = self.y
        found = {"input_ids": self.x, "labels": y, "shift_labels": y, "use_cache": False}
        if self.documents is None and self._host.token_counts is None:
            return found  # windows of which nothing is known
        self._known_documents("as_kwargs")
        found["position_ids"] = self.positions
        for side in "qk":
            found |= {f"cu_seq_lens_{side}": self.cu_seqlens, f"max_length_{side}": self.max_seqlen}
        return found

    # --- documents ---

    @cached_property
    def positions(self) -> Array:
        """Positions within documents, [B, T]: 0 at each row's and each document's start."""
        return self._delivered(self._positions(self._known_documents("positions")))

    @cached_property
    def segment_ids(self) -> Array:
        """Number of each position's document in its row: int32 [B, T], from 1; 0 is padding."""
        return self._delivered(self._known_documents("segment_ids").segment_ids())

    @cached_property
    def cu_seqlens(self) -> Array:
        """Where documents begin in the flattened batch: int32 [documents + 1], from 0 to B * T."""
        return self._delivered(self._known_documents("cu_seqlens").cu_seqlens())

    @cached_property
    def max_seqlen(self) -> int:
        """Tokens of the longest document, a Python int in [1, T]."""
        return self._known_documents("max_seqlen").max_seqlen

    def cu_seqlens_fixed(self, size: int | None = None, max_seqlen: int | None = None) -> Array:
        """Return cu_seqlens in a shape that is the same for every batch: int32 [size], padded with
        B * T. Documents longer than max_seqlen are cut into pieces of max_seqlen.

        size: is the length of the array; the default is large enough for every batch: B * T + 1, or
        less if the number of documents in a row is limited.
        max_seqlen: is the maximum length of a document, by default T; pass the same value to the
        attention.
        Raises: InvalidRequest if the documents of this batch do not fit into size.
        """
        documents = self._known_documents("cu_seqlens_fixed")
        return self._delivered(documents.cu_seqlens_fixed(size, max_seqlen))

    def cu_seqlens_rows(self) -> Array:
        """Return where documents begin in each row: int32 [B, n], from 0, padded with T."""
        return self._delivered(self._known_documents("cu_seqlens_rows").cu_seqlens_rows())

    def doc_lens(self) -> tuple[Array, list[int]]:
        """Return the lengths of the documents in each row, int32 [B, n], padded with 0; and for
        each row the length of its longest document, as Python ints.
        """
        lengths, longest = self._known_documents("doc_lens").doc_lens()
        return self._delivered(lengths), longest

    # --- origin ---

    @cached_property
    def sample_numpy(self) -> npt.NDArray[np.int64]:
        """Sample index of each row: int64[B], in host memory, for logs and provenance; -1 for rows
        that fill up the last batch before another context length.
        """
        return self._samples().astype(np.int64)

    @cached_property
    def source_numpy(self) -> npt.NDArray[np.int16]:
        """Number of each row's source in the mixture, 0 without one: int16[B], in host memory."""
        return self._sources().astype(np.int16)

    @cached_property
    def sample(self) -> Array:
        """Sample index of each row: int64[B], as `sample_numpy`."""
        return self._delivered(self.sample_numpy.copy())

    @cached_property
    def source(self) -> Array:
        """Number of each row's source in the mixture, 0 without one: int16[B].

        Where x is, as a loss per source is added up there; `source_numpy` is on the host.
        """
        return self._delivered(self.source_numpy.copy())

    @cached_property
    def state_before(self) -> dict[str, Any]:
        """The state_dict of a feed that delivers this batch next: for a trainer that has read this
        batch and not yet trained on it.
        """
        return self._state_before()

    @cached_property
    def state_after(self) -> dict[str, Any]:
        """The state_dict of a feed that has just delivered this batch."""
        return self._state_after()

    def _known_documents(self, attribute: str) -> BatchDocuments:
        if self.documents is None:
            raise InvalidRequest(
                attribute,
                "needs to know where documents begin, which not all datasets of this stream do; "
                "restore lost indices, or pass --document-end-token to their server, or "
                "?document-end-token= to local files",
            )
        return self.documents


class NumpyRichBatch(BatchAttributes[npt.NDArray[Any]]):
    """A batch of NumPy arrays: for JAX, and where torch is not installed.

    x, y: int32 or int64 [B, T]. tokens and positions have the type of x.
    """

    def _delivered(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array

    def _positions(self, documents: BatchDocuments) -> npt.NDArray[np.signedinteger]:
        return documents.positions(self.x.dtype)

    def _whole_rows(self) -> npt.NDArray[Any]:
        last = self._host.last_tokens[:, np.newaxis].astype(self.x.dtype)
        return np.concatenate([self.x, last], axis=1)
