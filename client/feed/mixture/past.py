"""Whether the sources of a saved state's mixture are those of a feed. Pure."""

from __future__ import annotations

from tokenfeed.errors import StreamMismatch
from tokenfeed.stream.spec import StreamParts, StreamSpec


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
    past = [stage.weights for stage in saved.stages if stage.first_sample < sample]
    for number, (before, now) in enumerate(zip(saved.sources, own.sources, strict=False)):
        if not any(weights[number] for weights in past):
            continue
        for field in ("order", "seed", "fingerprint"):
            old, new = getattr(before, field), getattr(now, field)
            if old != new:
                cure = f"pass {old}"
                if field == "fingerprint":
                    cure = "serve that corpus, or name a grown one as a new source"
                raise StreamMismatch(
                    f"mixture.{before.dataset}",
                    f"the state was saved with {field} {old}, but this stream has {new}; {cure}",
                )
