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
from ..transport.timeouts import Timeouts
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
    return integer(name, value, 0, 1 << 63)


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
            "context length has to be a power of two). If it is known where documents begin, "
            'order can also be "packed" (each row has several documents, or pieces of longer ones) '
            'or "padded" (each row has one). In these two orders each row comes once per epoch, '
            "and y is -100 at padding and where the next document begins.",
        ),
    ]
    group_tokens: Annotated[
        int,
        Option(
            GROUP_TOKENS,
            group_tokens_argument,
            'is the size in tokens of a group of the order "blocks", in [2^23, 2^39]: the windows '
            "of a group are shuffled together. In a mixture this size is divided among the sources "
            "(datasets): each gets a part in proportion to its first weight, at least 2^23 tokens, "
            "and keeps this part. Parts are rounded down to powers of two.",
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
            "is the data-parallel rank of this process. The default is the rank of "
            "torch.distributed, else the environment variable RANK, else 0.",
        ),
    ]
    world_size: Annotated[
        int | None,
        Option(
            None,
            optional_integer,
            "counts the data-parallel ranks. Pass rank and world_size together.",
        ),
    ]
    group: Annotated[
        Group | None,
        Option(
            None,
            unchecked,
            "is a ProcessGroup or 1-D DeviceMesh from which rank and world size are taken, instead "
            "of the two arguments.",
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
            "says whether y is also -100 where the next token begins another document. For all "
            "datasets it must be known where documents begin.",
        ),
    ]
    redactions: Annotated[
        str | Mapping[str, str] | None,
        Option(
            None,
            unchecked,
            "is the hash of a list of redactions (tokens to replace), as `tokenfeed redact` prints "
            "it, or a mapping from names of datasets to such hashes. These redactions are in force "
            "from sample 0, the first row, on. "
            "Without them, servers refuse rows that need erased tokens.",
        ),
    ]
    prefetch_bytes: Annotated[
        int,
        Option(
            PREFETCH_BYTES,
            _bytes,
            "limits the host memory for prefetched rows. With local files a feed prefetches at "
            "most 8 MiB, but at least two batches; with 0 it reads local files without a thread.",
        ),
    ]
    timeouts: Annotated[
        Timeouts,
        Option(
            Timeouts(),
            _timeouts,
            "say how long the feed waits for one server, and for all servers together.",
        ),
    ]
    credentials: Annotated[
        Credentials | None,
        Option(
            None,
            unchecked,
            "are TLS files and a bearer token. A field that is None is read from the environment "
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
            '"run-17 rank 3". The default is the machine\'s name and the rank.',
        ),
    ]


class FeedOptions(SharedOptions, total=False):
    """The keyword arguments of a feed. Not together: mixture with dataset or with fingerprint,
    start_step with start_sample.
    """

    dataset: Annotated[
        str | None,
        Option(None, text, "names the dataset; optional if the server has only one."),
    ]
    mixture: Annotated[
        Mixture | Mapping[str, float] | None,
        Option(
            None,
            unchecked,
            'has the weights of several datasets, such as {"web": 0.7, "code": 0.3}, in place of '
            "dataset; or is a Mixture, whose weights can change, and whose datasets can have their "
            "own orders and seeds.",
        ),
    ]
    fingerprint: Annotated[
        str | None,
        Option(
            None,
            unchecked,
            "is the expected fingerprint of the corpus, 64 hexadecimal digits, as `tokenfeed "
            "describe` prints them. The feed refuses servers with another corpus. By default the "
            "feed accepts the corpus of the first server that answers, and the ranks of a process "
            "group compare their corpora.",
        ),
    ]
    start_step: Annotated[
        int,
        Option(
            0,
            count,
            "is the number of steps to skip at the beginning; a step is one batch on each rank, at "
            "this batch size and world size.",
        ),
    ]
    start_sample: Annotated[
        int | None,
        Option(
            None,
            unchecked,
            "is the number of the first row to read (its sample index); unlike start_step it "
            "depends on neither batch size nor world size.",
        ),
    ]
    num_batches: Annotated[
        int | None,
        Option(
            None,
            optional_integer,
            "is the number of batches after which the feed ends, counted from its start; None "
            "makes it endless.",
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
