"""A mixture that was written as a file is the same mixture."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from client import Mixture
from client.feed.mixture.toml_text import mixture_toml
from tests.tokenfeed.sampling.test_mixture import SEEDS, asked_stages
from tokenfeed.sampling import orders
from tokenfeed.stream.redactions import Redaction
from tokenfeed.stream.spec import Source
from tokenfeed.stream.stages import AskedStage, scheduled

NAMES = st.lists(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=8),
    min_size=5,
    max_size=5,
    unique=True,
)


@given(
    asked_stages(),
    NAMES,
    st.lists(st.sampled_from(list(orders.LATEST)), min_size=5, max_size=5),
    st.lists(SEEDS, min_size=6, max_size=6),
    st.dictionaries(st.integers(0, 4), st.integers(1, 2**63 - 1)),
    st.none() | st.integers(60, 2**20),
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.binary(min_size=32, max_size=32)),
        st.integers(0, 2**63 - 1),
        max_size=3,
    ),
)
def test_a_written_mixture_is_read_as_it_was(
    asked: list[AskedStage],
    names: list[str],
    order_names: list[str],
    seeds: list[int],
    epochs: dict[int, int],
    block: int | None,
    redactions: dict[tuple[int, bytes], int],
) -> None:
    """Whatever its names are, and also if a source has no weight before one of a higher number."""
    count = len(asked[0].weights)
    sources = [Source(names[n], orders.latest(order_names[n]), seeds[n], n) for n in range(count)]
    max_epochs = {names[n]: limit for n, limit in epochs.items() if n < count}

    redacted = tuple(
        sorted(Redaction(sample, *key) for key, sample in redactions.items() if key[0] < count)
    )

    text = mixture_toml(
        seeds[5],
        "shuffled-1",
        sources,
        asked,
        context_length=8,
        max_epochs=max_epochs,
        block=block,
        redactions=redacted,
    )

    read = Mixture.parse(text.encode(), "written.toml")
    schedule = read.schedule(8, "random", 0)
    assert [
        (each.dataset, each.order, each.seed_used, each.number) for each in schedule.sources
    ] == [(each.dataset, each.order, each.seed_used, each.number) for each in sources]
    assert schedule.effective() == scheduled(asked, count)
    assert [stage.asked for stage in schedule.stages] == [stage.first_sample for stage in asked]
    assert (schedule.seed, schedule.order) == (seeds[5], "shuffled-1")
    assert (read.max_epochs, read.block) == (max_epochs, block)
    planned = read.planned_redactions(8)
    assert [*planned] == sorted(
        (each.first_sample, names[each.source], each.list_hash) for each in redacted
    )


@given(
    st.lists(
        st.sampled_from(
            [("padded", "cut"), ("padded", "drop"), ("padded", "truncate"), ("packed", "cut")]
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["padded", "packed", "shuffled"]),
    st.sampled_from(["cut", "drop", "truncate"]),
)
def test_a_written_mixture_does_not_depend_on_what_its_reader_does_with_long_documents(
    written: list[tuple[str, str]], order: str, long_of_reader: str
) -> None:
    """Else documents that were cut are dropped where it is copied to."""
    sources = [
        Source(f"s{number}", orders.latest(name), 7, number, long)
        for number, (name, long) in enumerate(written)
    ]
    stages = [AskedStage(0, (1,) * len(sources))]
    text = mixture_toml(
        7, orders.latest(order).NAME, sources, stages, context_length=8, max_epochs={}
    )

    long = long_of_reader if order == "padded" else ""
    schedule = Mixture.parse(text.encode(), "written.toml").schedule(8, "padded", 0, long)
    assert [each.long_documents for each in schedule.sources] == [long for _, long in written]


def test_a_written_mixture_is_what_a_person_would_write(tmp_path: Path) -> None:
    shuffled, random = orders.latest("shuffled"), orders.latest("random")
    sources = [Source("web", shuffled, 7, 0), Source("the code", random, 7, 1)]
    stages = [AskedStage(0, (7, 3)), AskedStage(4_000_000, (0, 1))]

    text = mixture_toml(
        7, "shuffled-1", sources, stages, context_length=2048, max_epochs={"web": 2}
    )

    assert text == (
        "# A sample has 2,048 tokens.\n"
        'order = "shuffled-1"\n'
        "seed = 7\n"
        "\n"
        "[[stages]]\n"
        'weights = {web = 7, "the code" = 3}\n'
        "\n"
        "[[stages]]\n"
        "first_sample = 4_000_000\n"
        'weights = {"the code" = 1}\n'
        "\n"
        "[sources.web]\n"
        "max_epochs = 2\n"
        "\n"
        '[sources."the code"]\n'
        'order = "random-1"\n'
    )
    (tmp_path / "mixture.toml").write_text(text)
    assert Mixture.load(tmp_path / "mixture.toml").max_epochs == {"web": 2}
