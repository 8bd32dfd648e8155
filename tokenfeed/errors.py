"""Every exception of the project, and the gRPC status that it is sent as.

TokenfeedError
  RequestError        the caller changes something
    InvalidRequest      a field is missing, malformed or outside its range
      LimitExceeded       a valid request above a limit of this server
    NotFound            no such dataset or order
    SamplesExhausted    the samples would reach 2^63
    StreamMismatch      the stream is not the expected one
      ListMissing         a server lacks a list of redactions, perhaps not for long
    NotATokenfeedServer a gRPC server, but not a tokenfeed server
    ContractMismatch    another revision of the contract
    Unauthenticated     no valid bearer token
    Forbidden           not for this caller
  CorpusError         the operator changes something
    InvalidCorpus       a token file cannot be served
    CorpusChanged       a token file changed while it was served
    Deleted             the rows need tokens that were erased on purpose
    InvalidSource       a text file cannot be ingested
    WriteFailed         tokens could not be written
  ServerUnavailable   no change needed: the client retries, or fails over
    Unreachable         no answer
    Unreadable          tokens cannot be read at the moment
    Busy                the server asks to retry later
    BadFrame            the frame is damaged, or not the requested one

Each message is "subject: problem"; the subject is a field, file or address. Both are attributes.
From a server's message the client makes the same exception again (`from_status`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class TokenfeedError(Exception):
    """Base of all exceptions that tokenfeed raises on purpose."""

    status: ClassVar[str] = "UNAVAILABLE"
    """Name of the gRPC status code of this error."""

    def __init__(self, subject: str, problem: str) -> None:
        """subject: a field, a file or an address.  problem: what is wrong, with limit and cure."""
        super().__init__(f"{subject}: {problem}")
        self.subject = subject
        self.problem = problem

    def __reduce__(self) -> tuple[type[TokenfeedError], tuple[object, ...]]:
        """Pickle the arguments, so that the attributes survive."""
        return type(self), (self.subject, self.problem)


class RequestError(TokenfeedError):
    """The caller has to change the request; a retry does not help."""


class InvalidRequest(RequestError):
    """A field of the request is missing, malformed or outside its range."""

    status = "INVALID_ARGUMENT"


class LimitExceeded(InvalidRequest):
    """The request exceeds a limit of this server, which its operator may raise."""


class NotFound(RequestError):
    """The server does not have the dataset or the order."""

    status = "NOT_FOUND"


class SamplesExhausted(RequestError):
    """The requested samples would reach 2^63."""

    status = "OUT_OF_RANGE"


class StreamMismatch(RequestError):
    """The server's stream has another corpus, order, seed or context length than expected."""

    status = "FAILED_PRECONDITION"


class ListMissing(StreamMismatch):
    """A server lacks a list of redactions that the stream names. A server may find the list soon,
    since it looks for new lists once a second.
    """


class NotATokenfeedServer(RequestError):
    """A gRPC server answers at this address, but it does not implement tokenfeed.v1."""

    status = "UNIMPLEMENTED"


class ContractMismatch(RequestError):
    """The server speaks another revision of the protocol than this client."""


class Unauthenticated(RequestError):
    """The server requires a bearer token, and the caller's token is missing or not valid."""

    status = "UNAUTHENTICATED"


class Forbidden(RequestError):
    """The caller has no permission to ask the server for this information."""

    status = "PERMISSION_DENIED"


class CorpusError(TokenfeedError):
    """The operator of the server has to change its files or its command line."""


class Option(str):
    """An option of a dataset, as an error for a command line names it.

    name: without dashes.  value: "" if only the option itself is meant.
    """

    name: str
    value: str

    def __new__(cls, name: str, value: object = "") -> Option:
        """Return "--NAME VALUE"."""
        made = super().__new__(cls, f"--{name} {value}".rstrip())
        made.name, made.value = name, str(value)
        return made

    def __reduce__(self) -> tuple[type[Option], tuple[str, str]]:
        """Return what makes it again, for pickle and copy."""
        return type(self), (self.name, self.value)

    def to(self, value: object) -> Option:
        """Return the option with a value."""
        return Option(self.name, value)


class InvalidCorpus(CorpusError):
    """A file cannot be served; found at the start, before anything is served."""

    def __init__(self, subject: str, problem: str, *options: Option) -> None:
        """options: those that the problem names."""
        super().__init__(subject, problem)
        self.options = options

    def __reduce__(self) -> tuple[type[TokenfeedError], tuple[object, ...]]:
        """Return how it is pickled, with its options."""
        return type(self), (self.subject, self.problem, *self.options)

    def spelled(self, spell: Callable[[Option], str]) -> InvalidCorpus:
        """Return the error for a caller that writes options in another way."""
        problem = self.problem
        for option in sorted(self.options, key=len, reverse=True):
            problem = problem.replace(option, spell(option))
        return type(self)(self.subject, problem)


class CorpusChanged(CorpusError):
    """A file of the dataset was truncated or rewritten while it was served."""

    status = "DATA_LOSS"


class Deleted(CorpusError):
    """A requested row needs tokens that were erased, and no redaction replaces these tokens in the
    row.
    """

    status = "DATA_LOSS"
    PHRASE: ClassVar[str] = "tokens were deleted"
    """What tells it from CorpusChanged: its problem contains this, and no name has spaces."""
    _ROW = "this row"

    def __init__(self, subject: str, problem: str, row: int = 0) -> None:
        """As above.  row: the first one that needs such tokens, of those that were planned together
        (`Spans.whole`).
        """
        super().__init__(subject, problem)
        self.row = row

    def __reduce__(self) -> tuple[type[TokenfeedError], tuple[object, ...]]:
        """As above."""
        return type(self), (self.subject, self.problem, self.row)

    @classmethod
    def of(
        cls, dataset: str, file_name: str, first_token: int, end_token: int, row: int = 0
    ) -> Deleted:
        """Return the error for an erased range of tokens of a file; the message names the file
        without its folder.
        """
        where = f"{shortened(file_name)}, tokens [{first_token}, {end_token})"
        cure = "read with a redaction of them in force, or from a replica that still has them"
        problem = f"{dataset!r}: {cls.PHRASE} that {cls._ROW} needs ({where}); {cure}"
        return cls("dataset", problem, row)

    def at_sample(self, sample: int) -> Deleted:
        """Return this error with the sample index of the affected row in its message."""
        return Deleted(self.subject, self.problem.replace(self._ROW, f"sample {sample}", 1))


class InvalidSource(CorpusError):
    """A text file cannot be ingested."""


class WriteFailed(CorpusError):
    """Ingested tokens could not be written; earlier output is kept."""


class ServerUnavailable(TokenfeedError):
    """The server is not available. The caller need not change anything: retry, on this or another
    server.
    """


class Unreachable(ServerUnavailable):
    """No server answered in time."""


class BeingMade(Unreachable):
    """Servers are still making the rows of documents, or searching the document starts, that a
    stream needs.
    """

    def __init__(self, subject: str, problem: str, progress: Mapping[str, float]) -> None:
        """As above.  progress: share of the work that is done, in [0, 1), of all that is being
        made, by a name that no other server and no other work has.
        """
        super().__init__(subject, problem)
        self.progress = progress

    def __reduce__(self) -> tuple[type[TokenfeedError], tuple[object, ...]]:
        """As above."""
        return type(self), (self.subject, self.problem, self.progress)


class Unreadable(ServerUnavailable):
    """The server cannot read a part of a dataset at the moment; its files have not changed."""


class Busy(ServerUnavailable):
    """The server, or a proxy in front of it, is at a temporary limit."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(self, subject: str, problem: str, retry_seconds: float = 1.0) -> None:
        """As above.  retry_seconds: how long to wait before a retry."""
        super().__init__(subject, problem)
        self.retry_seconds = retry_seconds


class BadFrame(ServerUnavailable):
    """A message of rows from the server is damaged, or is not the requested one."""

    status = "DATA_LOSS"


_NAME_SHOWN_BYTES = 64
_NAMES_SHOWN = 16


def shortened(name: str) -> str:
    """Return the beginning of a name, for an error: a refusal has to fit into a header, where a
    byte of UTF-8 takes up to three.
    """
    return name.encode(errors="replace")[:_NAME_SHOWN_BYTES].decode(errors="ignore")


def listed(names: list[str]) -> str:
    """Return a list of names, for an error: each is cut, and of many only some are listed."""
    shown = ", ".join(map(shortened, names[:_NAMES_SHOWN]))
    left = len(names) - _NAMES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


_RETRYABLE = frozenset(
    ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "ABORTED", "UNKNOWN", "INTERNAL")
)
_FINAL: dict[str, type[TokenfeedError]] = {
    kind.status: kind
    for kind in (
        InvalidRequest,
        NotFound,
        SamplesExhausted,
        StreamMismatch,
        NotATokenfeedServer,
        Unauthenticated,
        Forbidden,
        CorpusChanged,
    )
}


def from_status(status: str, details: str) -> TokenfeedError | None:
    """Return the exception for a server's refusal, or None if a retry may help.

    status: name of the gRPC status code.  details: the server's message, "subject: problem".
    """
    if status in _RETRYABLE:
        return None
    subject, colon, problem = details.partition(": ")
    kind = _FINAL.get(status, RequestError)
    if kind is CorpusChanged and Deleted.PHRASE in problem:
        kind = Deleted
    return kind(subject, problem) if colon else kind("server", f"{details} ({status})")
