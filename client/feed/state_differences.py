"""The differences between a state and the feed that loads it: which there are, and which a user may
permit. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.stage import CHANGED, FACTS, Corpus, Redaction, Source, Stage

PARTS = ("order", "seed", "context_length", "fingerprint", "long_documents", "pieces")
"""What makes the samples of a stream over one dataset."""
MID_EPOCH = "mid_epoch"
"""A permission to change the context length in the middle of an epoch."""
MIXTURE = "mixture"
"""A permission to go on with other weights, by a stage that is appended at the saved sample."""
PLANES = "planes"
"""A permission to go on with other targets."""
REDACTIONS = "redactions"
"""A permission to go on with redactions that the rows before the saved sample had not, or without
those of another corpus."""
PERMISSIONS = (*PARTS, MID_EPOCH, MIXTURE, PLANES, REDACTIONS)


def length_of(begun: Sequence[Stage], own: int, *, may_go_back: bool = False) -> int:
    """Return the context length with which a feed goes on in a stage of a state: that of the state
    if the run was changed to it while it had that of the feed; else that of the feed.

    begun: the stages up to that one.  own: of the feed.  may_go_back: whether a feed of a length to
    which the run was changed once changes it back; one of that with which it began never does.
    """
    first = 0
    for place, (one, later) in enumerate(pairwise(begun), 1):
        if one.context_length != later.context_length and not later.origin & CHANGED:
            first = place
    had = {stage.context_length for stage in begun[first:]}
    is_known = own in had and not may_go_back
    return begun[-1].context_length if is_known or begun[first].context_length == own else own


def differences(
    theirs: Source, their_length: int, mine: Source, my_length: int
) -> list[tuple[str, object, object]]:
    """Return name, saved value and own value of each of PARTS that differs.

    theirs, their_length: the source of a state, and its context length.  mine, my_length: those of
    the feed; both sources have their corpora.
    """
    assert theirs.corpus is not None
    assert mine.corpus is not None
    pairs: dict[str, tuple[object, object]] = {
        **{name: (theirs.facts[name], mine.facts[name]) for name in FACTS},
        "context_length": (their_length, my_length),
        "fingerprint": (theirs.corpus.fingerprint.hex(), mine.corpus.fingerprint.hex()),
        "long_documents": (theirs.long_documents, mine.long_documents),
        "pieces": (
            theirs.corpus.pieces_at(their_length).hex(),
            mine.corpus.pieces_at(my_length).hex(),
        ),
    }
    differing = [(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    names = {name for name, _, _ in differing}
    left_out = set()
    if not all(pairs["pieces"]) or names & {"context_length", "fingerprint", "long_documents"}:
        left_out.add("pieces")  # of other rows anyway
    if "order" in names:
        left_out.add("long_documents")
        if not (theirs.order.USES_SEED and mine.order.USES_SEED):
            left_out.add("seed")
    return [each for each in differing if each[0] not in left_out]


def allowed(
    differing: Sequence[tuple[str, object, object]], allow: Collection[str]
) -> tuple[str, ...]:
    """Return what to log of parts that differ, as `differences` returns them.

    allow: as a user passed it.  Raises: StreamMismatch, naming the first one that is not allowed.
    """
    for name, before, now in differing:
        if name not in allow:
            raise StreamMismatch(
                name,
                f"the state was saved with {before}, but this stream has {now}, so its samples "
                f"differ. {_cure(name, before)}, or allow=({name!r},) to go on with other samples",
            )
    return tuple(
        f"resumed on another stream part={name} saved={before} now={now}"
        for name, before, now in differing
    )


def _cure(name: str, before: object) -> str:
    return {
        "fingerprint": "Pass a server and a dataset with that corpus",
        "pieces": "Pass a server with the same document borders",
        "long_documents": f"Pass long={before!r}",
    }.get(name, f"Pass {name}={before!r}")


def corpus_of(source: Source) -> bytes | None:
    """Return the fingerprint of the corpus of a source; None if it is not described."""
    return source.corpus.fingerprint if source.corpus else None


def facts_of(source: Source) -> tuple[object, ...]:
    """Return what decides whether two sources read the same rows."""
    return corpus_of(source), source.facts, source.long_documents


def blocks_of(source: Source) -> tuple[object, ...]:
    """Return what decides whether two sources read the same groups of blocks, but for their
    size.
    """
    return corpus_of(source), *(source.facts[name] for name in FACTS)


def redaction_difference(
    own: Redaction, dataset: str, begin: int | None, sample: int
) -> tuple[str, str]:
    """Return how a state differs in a redaction, and what to do.

    own: of the feed, of this dataset.  begin: where its list begins in the state; None without it.
    sample: the saved one.
    """
    of = f" of dataset {dataset!r}" if dataset else ""
    what = f"list {own.list_hash.hex()}{of}"
    here = f"but this feed has it from sample {own.first_sample} on"
    if begin is not None:
        problem = f"the state has {what} from sample {begin} on, {here}"
        return problem, f'pass {begin}, or allow=("redactions",) to go on as the state says'
    problem = f"the state, at sample {sample}, has no {what}, {here}"
    cure = f"pass {sample} or a later sample"
    return problem, f'{cure}, or allow=("redactions",) to have it in force from there on'


def require_saved_corpus(theirs: Source, corpus: Corpus, context_length: int) -> None:
    """Raise StreamMismatch if a source has another corpus now than when it was read, or other
    pieces of documents at a context length. Pieces are compared only if both are known.

    theirs: the source as it was read, with its corpus.  corpus: what it is now.
    """
    assert theirs.corpus is not None
    if theirs.corpus.fingerprint != corpus.fingerprint:
        cure = "serve that corpus, or name a grown one as a new source"
        pair = theirs.corpus.fingerprint.hex(), corpus.fingerprint.hex()
        raise source_differs(theirs, "fingerprint", *pair, cure)
    before, now = (each.pieces_at(context_length) for each in (theirs.corpus, corpus))
    if before and now and before != now:
        cure = "serve it with the same document borders"
        raise source_differs(theirs, "pieces", before.hex(), now.hex(), cure)


def source_differs(
    theirs: Source, name: str, before: object, now: object, cure: str
) -> StreamMismatch:
    """Return the error for a source that differs from the same source in a saved state.

    theirs: the source in the state.  name: of the part that differs.  before, now: the value of
    that part in the state, and now.  cure: what a user can do.
    """
    problem = f"the state was saved with {name} {before}, but this stream has {now}; {cure}"
    return StreamMismatch(f"mixture.{theirs.dataset}" if theirs.dataset else name, problem)
