"""The keyword arguments of a feed: each is named, typed, defaulted and described once, here. Most
are checked here too; those marked `unchecked` are checked where they are used.

A type checker reads the classes. At run time `checked` reads their fields to check arguments, and
`takes` to show them in `help` and `inspect.signature`. Knows nothing of torch.
"""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict, TypeVar, get_args, get_type_hints

from tokenfeed.errors import InvalidRequest
from tokenfeed.sampling import orders
from tokenfeed.stream.position import require_range

from ..runtime.arguments import (
    count,
    flag,
    integer,
    one_of,
    optional_integer,
    text,
)
from ..source.plane_selection import LOSS_MASKS, LossMask
from ..transport.credentials import Credentials
from ..transport.timeouts import DEFAULT_TIMEOUTS, Timeouts
from .mixture.recipe import GROUP_TOKENS, Mixture, group_tokens_argument
from .ranks.coordinates import Group

Tail = Literal["drop", "wrap", "pad"]
"""What becomes of samples that fill no whole batch; of `Feed.epoch`."""
TAILS: tuple[str, ...] = get_args(Tail)
PREFETCH_BYTES = 32 << 20
"""Two calls of 16 frames: one is read, one is requested ahead. As fast as one endless stream. A
second call that is requested later saves nothing, and costs a fifth of the rate with 10 ms of round
trip: docs/decisions/0018-hot-path.md.
"""
_LINE = 96
"""Columns of a docstring."""


class Option(NamedTuple):
    """What is known of an argument beside its name and type.

    default: its value if it is not given.  check: takes name and value, and returns the value to
    use; raises InvalidRequest or NotFound.  sentence: describes the argument; the name comes first.
    """

    default: Any
    check: Callable[[str, Any], Any]
    sentence: str


def unchecked(name: str, value: Any) -> Any:
    """Return a value that is checked where it is used."""
    return value


def _order(name: str, value: str) -> str:
    return orders.latest(text(name, value)).NAME


def _bytes(name: str, value: int) -> int:
    size = integer(name, value)
    require_range(name, size, 0, 1 << 63)
    return size


def _timeouts(name: str, value: Timeouts) -> Timeouts:
    if not isinstance(value, Timeouts):
        raise InvalidRequest(name, f"{value!r} is not valid; pass tokenfeed.Timeouts(...)")
    return value


class SharedOptions(TypedDict, total=False):
    """The arguments that feeds and validation feeds have."""

    seed: Annotated[int, Option(0, integer, "selects the permutations of the order, in [0, 2^64).")]
    order: Annotated[
        str,
        Option(
            orders.DEFAULT_OF_FEEDS,
            _order,
            'is "shuffled" or "sequential" (each window once per epoch, one epoch after another), '
            '"random" (any window, with replacement), or "blocks" (each window once per epoch, '
            "shuffled within groups of blocks, so that few parts of the files are in use; the "
            "context length has to be a power of two). Over documents, which have to be known: "
            '"packed" (rows of whole pieces of documents, each once per epoch) or "padded" (one '
            "piece a row). Their y is -100 at padding and where the next piece begins.",
        ),
    ]
    group_tokens: Annotated[
        int,
        Option(
            GROUP_TOKENS,
            group_tokens_argument,
            'counts the tokens of a group of the order "blocks", in [2^23, 2^39]: the windows of a '
            "group are shuffled together. In a mixture it is a budget of all sources: each gets a "
            "part by the first weight that it has, at least 2^23, and keeps it. Parts are rounded "
            "down to powers of two.",
        ),
    ]
    long: Annotated[
        str | None,
        Option(
            None,
            unchecked,
            'says what "padded" does with documents longer than a row: "cut" into pieces (the '
            'default), "drop" or "truncate".',
        ),
    ]
    rank: Annotated[
        int | None,
        Option(
            None,
            optional_integer,
            "is the data-parallel rank of this process. By default torch.distributed says it, else "
            "RANK, else it is 0.",
        ),
    ]
    world_size: Annotated[
        int | None,
        Option(
            None, optional_integer, "counts data-parallel ranks. It is given together with rank."
        ),
    ]
    group: Annotated[
        Group | None,
        Option(
            None,
            unchecked,
            "is a ProcessGroup or 1-D DeviceMesh that has rank and world size instead.",
        ),
    ]
    loss_mask: Annotated[
        LossMask,
        Option(
            "apply",
            partial(one_of, values=LOSS_MASKS),
            'is "apply" (where a corpus has a loss mask, y is -100 at tokens that it masks, so '
            'that a loss ignores them) or "ignore" (every token is a target).',
        ),
    ]
    mask_borders: Annotated[
        bool,
        Option(
            False,
            flag,
            "says whether y is -100 too where its token begins another document than that of x. "
            "The documents of all datasets have to be known.",
        ),
    ]
    redactions: Annotated[
        str | Mapping[str, str] | None,
        Option(
            None,
            unchecked,
            "is the hash of a list of redactions, as `tokenfeed redact` prints it, which is in "
            "force from sample 0 on; or has one for each of some datasets, by their names. Rows "
            "that need erased tokens are refused without it.",
        ),
    ]
    prefetch_bytes: Annotated[
        int,
        Option(
            PREFETCH_BYTES,
            _bytes,
            "limits the host memory for prefetched rows. With local files at most 8 MiB of it are "
            "used, but at least two batches, and 0 reads them without a thread.",
        ),
    ]
    timeouts: Annotated[
        Timeouts,
        Option(
            DEFAULT_TIMEOUTS, _timeouts, "are those for one server, and for all servers together."
        ),
    ]
    credentials: Annotated[
        Credentials | None,
        Option(
            None,
            unchecked,
            "are TLS files and a bearer token. Each field that is None comes from the environment "
            "(TOKENFEED_TLS_CA, and so on; see Credentials). Without tls_ca the connection is "
            "plaintext.",
        ),
    ]
    client_name: Annotated[
        str | None,
        Option(
            None,
            unchecked,
            "names this client in server logs: printable text of up to 128 characters, such as "
            '"run-17 rank 3". By default it is the machine\'s name and the rank.',
        ),
    ]


class FeedOptions(SharedOptions, total=False):
    """The keyword arguments of a feed. Not together: mixture with dataset or with fingerprint,
    start_step with start_sample.
    """

    dataset: Annotated[
        str | None,
        Option(None, text, "names the dataset; it is optional if the server has only one."),
    ]
    mixture: Annotated[
        Mixture | Mapping[str, float] | None,
        Option(
            None,
            unchecked,
            'has weights of several datasets instead, {"web": 0.7, "code": 0.3}, or is a Mixture: '
            "of weights that change, and of sources with orders and seeds of their own.",
        ),
    ]
    fingerprint: Annotated[
        str | None,
        Option(
            None,
            unchecked,
            "has 64 hexadecimal digits, as `tokenfeed describe` prints them. A server with another "
            "corpus is refused. Without it, the client accepts the corpus of the first server that "
            "answers, and the ranks of a process group compare their corpora.",
        ),
    ]
    start_step: Annotated[
        int,
        Option(
            0,
            count,
            "counts batches of all ranks to begin after, at this batch size and world size.",
        ),
    ]
    start_sample: Annotated[
        int | None,
        Option(
            None,
            unchecked,
            "says the same as a sample index, which depends on neither of the two sizes.",
        ),
    ]
    num_batches: Annotated[
        int | None,
        Option(
            None,
            optional_integer,
            "is the length of the stream from there on; None is endless.",
        ),
    ]


Options = TypeVar("Options", bound=Mapping[str, object])
Taker = TypeVar("Taker", bound=Callable[..., Any])


def options_of(kind: type[Any]) -> Mapping[str, tuple[Any, Option]]:
    """Return type and Option of each argument in a class of them, by name.

    kind: a TypedDict whose fields are annotated with an Option.
    """
    hints = get_type_hints(kind, include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items()}


def checked(kind: type[Options], given: Mapping[str, object], taker: str) -> Options:
    """Return all arguments of a class of options, checked; those not given have their default.

    kind: a TypedDict whose fields are annotated with an Option.  given: what the caller passed.
    taker: name of the function or class that was called, for the message.
    Raises: TypeError for an unknown argument, with the nearest name, or all names; InvalidRequest
    or NotFound for a value, naming the argument and its limit.
    """
    known = options_of(kind)
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            cure = f"; did you mean {near[0]!r}?" if near else f", only {', '.join(known)}"
            raise TypeError(f"{taker} has no argument {name!r}{cure}")
    return {  # type: ignore[return-value]
        name: option.check(name, given.get(name, option.default))
        for name, (_, option) in known.items()
    }


def takes(kind: type[Any], **defaults: object) -> Callable[[Taker], Taker]:
    """Return a decorator for a function that takes the arguments of a class as **options: it shows
    each of them in the function's signature and docstring.

    kind: a TypedDict whose fields are annotated with an Option.  defaults: of arguments whose
    default differs in this function.
    """

    def show(function: Taker) -> Taker:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, option.default),
                annotation=hint,
            )
            for name, (hint, option) in options_of(kind).items()
        ]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *named]
        )
        sentences = [f"{name} {option.sentence}" for name, (_, option) in options_of(kind).items()]
        wrapped = [textwrap.fill(each, _LINE, subsequent_indent="    ") for each in sentences]
        text = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([text, "", *wrapped])
        return function

    return show
