"""Every exception of the project, and the gRPC status that each travels as.

TokenfeedError
  RequestError        the caller changes something
    InvalidRequest      a field is missing, malformed or outside its range
      LimitExceeded           allowed in principle, but more than this server gives
    NotFound           no such dataset or order
    SamplesExhausted    the samples would reach 2^63
    StreamMismatch      the stream is not the one that the caller expects
    NotATokenfeedServer        a gRPC server answers there, but not a tokenfeed server
    ContractMismatch       a tokenfeed server of another revision of the contract, or of identities
    Unauthenticated          no valid token
  CorpusError         the operator changes something
    InvalidCorpus           a token file cannot be served as it is
    CorpusChanged       a token file changed while it was served
    InvalidSource           a file of text cannot be ingested as it is
    WriteFailed          tokens could not be written
  ServerUnavailable          nobody: try again, or the next server
    Unreachable         no answer
    Unreadable          tokens cannot be read at present
    Busy                an answer: come back later
    BadFrame            what arrived is not what was asked for

Each says "subject: problem", where the subject is the field, file or address that it is about; both
are kept as attributes. So a server's sentence becomes the same exception again on the client's
side: `from_status`.
"""

from __future__ import annotations

from typing import ClassVar


class TokenfeedError(Exception):
    """Anything that tokenfeed raises on purpose."""

    status: ClassVar[str] = "UNAVAILABLE"
    """Name of the gRPC status code that this error travels as."""

    def __init__(self, subject: str, problem: str) -> None:
        """Keep what it is about (a field, a file, an address) and what is wrong, limit and cure
        included.
        """
        super().__init__(f"{subject}: {problem}")
        self.subject = subject
        self.problem = problem

    def __reduce__(self) -> tuple[type[TokenfeedError], tuple[str, str]]:
        """Pickle by the facts, so that an error crosses process borders whole."""
        return type(self), (self.subject, self.problem)


class RequestError(TokenfeedError):
    """The caller has to ask for something else; asking again does not help."""


class InvalidRequest(RequestError):
    """A field of the request is missing, malformed or outside its range."""

    status = "INVALID_ARGUMENT"


class LimitExceeded(InvalidRequest):
    """More than this server gives: a limit that its operator may raise."""


class NotFound(RequestError):
    """The dataset or the order is not served here."""

    status = "NOT_FOUND"


class SamplesExhausted(RequestError):
    """The samples asked for would reach 2^63."""

    status = "OUT_OF_RANGE"


class StreamMismatch(RequestError):
    """The server's stream is not the expected one: another corpus, order, seed or context
    length.
    """

    status = "FAILED_PRECONDITION"


class NotATokenfeedServer(RequestError):
    """A gRPC server answers at that address, but it does not know tokenfeed.v1."""

    status = "UNIMPLEMENTED"


class ContractMismatch(RequestError):
    """The server speaks another revision of the contract than this client, or compares identities
    of other versions than this stream's.
    """


class Unauthenticated(RequestError):
    """The server wants a token, and this is none of its own."""

    status = "UNAUTHENTICATED"


class CorpusError(TokenfeedError):
    """The operator of the server has to mend its files or its command line."""


class InvalidCorpus(CorpusError):
    """A file cannot be served as it is; found at start, before anything is served."""


class CorpusChanged(CorpusError):
    """A file of the dataset was cut short or rewritten while it was served."""

    status = "DATA_LOSS"


class InvalidSource(CorpusError):
    """A file of text cannot be ingested as it is."""


class WriteFailed(CorpusError):
    """What was ingested could not be written; what was written before is kept."""


class ServerUnavailable(TokenfeedError):
    """Nobody has to change anything: ask again, or ask another server."""


class Unreachable(ServerUnavailable):
    """No server answered in time."""


class Unreadable(ServerUnavailable):
    """The server cannot read a part of a dataset at present; its files have not changed."""


class Busy(ServerUnavailable):
    """The server, or a proxy in front of it, is at a limit that will pass."""

    status = "RESOURCE_EXHAUSTED"

    def __init__(self, subject: str, problem: str, retry_seconds: float = 1.0) -> None:
        """As above.  retry_seconds: how long to stay away."""
        super().__init__(subject, problem)
        self.retry_seconds = retry_seconds


class BadFrame(ServerUnavailable):
    """What arrived is damaged, or is not what was asked for."""

    status = "DATA_LOSS"


_NAME_SHOWN_BYTES = 64
_NAMES_SHOWN = 16


def shortened(name: str) -> str:
    """Return the beginning of a name, as an error shows it: a refusal has to fit into a header,
    where a byte of UTF-8 takes up to three.
    """
    return name.encode(errors="replace")[:_NAME_SHOWN_BYTES].decode(errors="ignore")


def listed(names: list[str]) -> str:
    """Return names as an error lists them: cut, and of many only some."""
    shown = ", ".join(map(shortened, names[:_NAMES_SHOWN]))
    left = len(names) - _NAMES_SHOWN
    return f"{shown} and {left} more" if left > 0 else shown


_HEALING = frozenset(
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
        CorpusChanged,
    )
}


def from_status(status: str, details: str) -> TokenfeedError | None:
    """Return the exception that a server's refusal stands for, or None where asking again may help.

    status: name of the gRPC status code.  details: the server's sentence, "subject: problem".
    """
    if status in _HEALING:
        return None
    subject, colon, problem = details.partition(": ")
    kind = _FINAL.get(status, RequestError)
    return kind(subject, problem) if colon else kind("server", f"{details} ({status})")
