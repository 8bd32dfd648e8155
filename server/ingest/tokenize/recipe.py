"""What decides how documents become tokens; sent to workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ..units import Column
from .chat_template import ChatTemplateFile
from .tokenizer import TokenizerFile

_PADDING_COLUMN = "attention_mask"
"""Of tokens: 0 at those that are padding."""
_TOKENS_COLUMN = "input_ids"
"""How names of columns of tokens end: those of what belongs to them begin alike, as do
chosen_input_ids and chosen_labels."""
_LABELS_COLUMNS = ("labels", "label", "completion_mask", "assistant_masks", "loss_mask")
"""Columns that say which tokens are targets: labels, -100 where there is none; and those of TRL and
others, 1 at a target, whose names end as `MASK_ENDINGS`."""
MASK_ENDINGS = ("mask", "masks")
_TOOLS_COLUMN = "tools"
"""Of chats, as datasets name it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How documents become tokens.

    columns: of the text: one, or prompt and response; of the messages of chats; or of tokens, and
    of their labels if they have some.  prepend_id, append_id: tokens before and after each
    document.  val_fraction: share of documents for validation, in [0, 1).  chat_template: None
    unless documents are chats.  tools_column: of chats, if they have tools.  id_column: of the ids
    of documents, if they are kept.  are_tokens: whether the columns hold tokens.
    refuses_labels: whether labels beside them are an error, as nothing was said about them.
    refuses_tools: the same of tools beside messages.
    """

    tokenizer_file: TokenizerFile
    columns: tuple[str, ...]
    prepend_id: int | None
    append_id: int | None
    val_fraction: float
    chat_template: ChatTemplateFile | None = None
    tools_column: str | None = None
    id_column: str | None = None
    are_tokens: bool = False
    refuses_labels: bool = False
    refuses_tools: bool = False

    @property
    def has_mask(self) -> bool:
        """Whether there is a loss mask."""
        return len(self.columns) == 2 or self.chat_template is not None

    @property
    def read_columns(self) -> tuple[Column, ...]:
        """What is read of each document, in this order: its text, messages, or tokens with their
        labels and which of them are no padding; tools; and id.
        """
        kind: Literal["text", "json", "numbers"] = "text" if self.chat_template is None else "json"
        if self.are_tokens:
            kind = "numbers"
        found = [Column(name, kind) for name in self.columns]
        if self.refuses_labels:
            names = tuple(self._beside_tokens(name) for name in _LABELS_COLUMNS)
            found[0] = replace(found[0], refuses=names)
        if self.refuses_tools:
            found[0] = replace(found[0], refuses=(_TOOLS_COLUMN,))
        if self.are_tokens:
            name = self.padding_column
            found.append(Column(name, "numbers", is_optional=True, may_be_absent=True))
        if self.tools_column is not None:
            found.append(Column(self.tools_column, "json", is_optional=True))
        if self.id_column is not None:
            found.append(Column(self.id_column, "id"))
        return tuple(found)

    @property
    def padding_column(self) -> str:
        """Of tokens: what says which of them are padding."""
        return self._beside_tokens(_PADDING_COLUMN)

    def _beside_tokens(self, name: str) -> str:
        tokens = self.columns[0]
        prefix = tokens.removesuffix(_TOKENS_COLUMN) if tokens.endswith(_TOKENS_COLUMN) else ""
        return prefix + name

    def is_val(self, sha256: bytes) -> bool:
        """Return whether a document belongs to the validation split, by its hash: it stays in its
        split whatever else is ingested.
        """
        return int.from_bytes(sha256[:8], "big") < int(self.val_fraction * 2.0**64)
