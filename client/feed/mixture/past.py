"""Whether the sources of a saved state are those of a feed. Pure."""

from __future__ import annotations

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.parts import StreamParts
from tokenfeed.stream.spec import StreamSpec


def require_same_length_and_seed(saved: StreamParts, own: StreamSpec) -> None:
    """Compare what a mixture cannot change.  Raises: StreamMismatch, naming what differs."""
    for name, cure in (("context_length", "a mixture cannot change it"), ("seed", "")):
        before, now = getattr(saved, name), getattr(own, name)
        if before != now:
            problem = f"the state was saved with {before}, but this mixture has {now}"
            raise StreamMismatch(name, f"{problem}; {cure or f'pass {name}={before}'}")


def require_same_sources(saved: StreamParts, own: StreamParts, sample: int) -> None:
    """Compare the sources that were read before a sample. Those of a state that a feed continues
    have the same numbers there.

    saved, own: of mixtures.  Raises: StreamMismatch, naming what differs.
    """
    past = _numbers_read(saved, sample)
    for number, (before, now) in enumerate(zip(saved.sources, own.sources, strict=False)):
        if number not in past:
            continue
        for field in ("order", "seed", "fingerprint", "long_documents", "pieces"):
            old, new = getattr(before, field), getattr(now, field)
            if old != new:
                cure = f"pass {old}"
                if field == "fingerprint":
                    cure = "serve that corpus, or name a grown one as a new source"
                elif field == "long_documents":
                    cure = f"pass long={old!r} for this source"
                elif field == "pieces":
                    cure = "serve it with the same document borders"
                raise StreamMismatch(
                    f"mixture.{before.dataset}",
                    f"the state was saved with {field} {old}, but this stream has {new}; {cure}",
                )


def same_corpora(saved: StreamParts, own: StreamParts, sample: int) -> set[str]:
    """Return the datasets that were read before a sample and have the same tokens now; "" stands
    for that of a stream of one dataset.
    """
    if not saved.stages:
        return {""} if saved.fingerprint == own.fingerprint else set()
    past = _numbers_read(saved, sample)
    now = {source.dataset: source.fingerprint for source in own.sources}
    return {
        source.dataset
        for number, source in enumerate(saved.sources)
        if number in past and now.get(source.dataset) == source.fingerprint
    }


def _numbers_read(saved: StreamParts, sample: int) -> set[int]:
    """Return the numbers of the sources that were read before a sample."""
    weights = [stage.weights for stage in saved.stages if stage.first_sample < sample]
    return {number for each in weights for number, weight in enumerate(each) if weight}
