"""TRL's SFTTrainer by tokenfeed.client.adapters.trl, on chats and pairs that were ingested: their
tokens and targets are those that TRL makes of the same chats.

    python -m tests.adapters trl
"""

from __future__ import annotations

import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from client import InvalidRequest, RemoteBatches
from tests.adapters.hf_runs import LEARNING_RATE, Seen, arguments, model_of
from tests.conftest import serving
from tests.server.ingest.chats import CHATML, make_chat_tokenizer
from tests.server.ingest.corpus import write_parquet
from tests.server.ingest.running import ingested
from tokenfeed.client.adapters.trl import FeedSFTTrainer
from tokenfeed.client.device.rich_batch import RichBatch

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]
T, SEED = 128, 5
END = "<|im_end|>"


def text(choose: random.Random, longest: int) -> str:
    return "".join(choose.choices(string.ascii_lowercase + " ", k=choose.randint(1, longest)))


@pytest.fixture(scope="module")
def tables() -> dict[str, dict[str, list[Any]]]:
    """Chats of one to three turns, and pairs; none is longer than a row."""
    choose = random.Random(2)
    chats = [
        [
            {"role": role, "content": text(choose, 9)}
            for _ in range(choose.randint(1, 3))
            for role in ("user", "assistant")
        ]
        for _ in range(60)
    ]
    # No token crosses the border, or TRL would drop the end of the prompt.
    pairs = {
        "prompt": [text(choose, 30) + ":" for _ in range(60)],
        "completion": [text(choose, 30) for _ in range(60)],
    }
    return {"chats": {"messages": chats}, "pairs": pairs}


@pytest.fixture(scope="module")
def folder(tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both, ingested."""
    folder = tmp_path_factory.mktemp("corpora")
    make_chat_tokenizer(folder / "tokenizer.json")
    (folder / "template.jinja").write_text(CHATML)
    own = {
        "chats": ("--messages-column", "messages", "--chat-template", folder / "template.jinja"),
        "pairs": (
            "--prompt-column", "prompt", "--response-column", "completion", "--append-token", END,
        ),
    }  # fmt: skip
    for name, options in own.items():
        path = write_parquet(folder / f"{name}.parquet", tables[name])
        ingested(
            path, "--out", folder / name, "--tokenizer", folder / "tokenizer.json",
            "--val-fraction", "0", *options,
        )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=END, chat_template=CHATML
    )


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with serving(folder) as serve:
        words = [f"{name}={folder / name / 'train'}" for name in ("chats", "pairs")]
        yield serve("--data", words[0], "--data", words[1]).address


def feed_of(address: str, name: str = "chats", **options: Any) -> RemoteBatches:
    given = {"dataset": name, "order": "packed", "seed": SEED, **options}
    return RemoteBatches(address, 2, T, **given)


def config(folder: Path, **options: Any) -> SFTConfig:
    return SFTConfig(**arguments(folder, bf16=False, **options))


Documents = Counter[tuple[tuple[int, ...], tuple[int, ...]]]
"""Tokens of documents, with the target that follows each, or -100; up to the last target."""


def learned(x: list[int], y: list[int]) -> Documents:
    """One document; none if it is padding."""
    end = max((at for at, target in enumerate(y, 1) if target != -100), default=0)
    return Counter([(tuple(x[:end]), tuple(y[:end]))] if end else [])


def documents(batches: Iterator[RichBatch], epoch_rows: int) -> Documents:
    """The documents of an epoch, as the model sees them."""
    found: Documents = Counter()
    for batch in batches:
        lengths, _ = batch.doc_lens()
        for row in range(min(2, epoch_rows)):
            ends = lengths[row].cumsum(0).tolist()
            for begin, end in zip([0, *ends[:-1]], ends, strict=True):
                found += learned(batch.x[row, begin:end].tolist(), batch.y[row, begin:end].tolist())
        epoch_rows -= 2
    return found


def documents_of(prepared: Dataset) -> Documents:
    """The same, of a dataset that SFTTrainer has prepared."""
    found: Documents = Counter()
    for row in prepared:
        found += learned(row["input_ids"][:-1], row["labels"][1:])
    return found


@pytest.mark.parametrize("name", ["chats", "pairs"])
def test_documents_and_targets_are_those_that_the_sft_trainer_makes(
    name: str,
    address: str,
    tables: dict[str, Any],
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> None:
    """Masks of all but the assistant, and of prompts: token for token."""
    own = SFTTrainer(
        model_of(),
        config(tmp_path, max_length=None, assistant_only_loss=name == "chats"),
        train_dataset=Dataset.from_dict(tables[name]),
        processing_class=tokenizer,
    )
    wanted = documents_of(own.train_dataset)
    with feed_of(address, name) as feed:
        found = documents(feed.epoch(0, tail="pad").batches(), len(feed.as_dataset()))

    assert found == wanted
    assert sum(found.values()) == 60


def plain_loop(
    address: str, steps: int, accumulate: int, name: str
) -> tuple[list[list[int]], list[float]]:
    """Rows and losses of a loop over the feed."""
    model, seen_rows, losses = model_of(), [], []
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    with feed_of(address, name) as feed:
        for _ in range(steps):
            batches = [batch for _, batch in zip(range(accumulate), feed.batches(), strict=False)]
            total = torch.zeros(())
            for batch in batches:
                seen_rows += batch.x.tolist()
                logits = model(
                    input_ids=batch.x, position_ids=batch.positions, use_cache=False
                ).logits
                total = total + cross_entropy(
                    logits.flatten(0, 1), batch.y.flatten(), reduction="sum"
                )
            loss = total / sum(batch.num_valid_targets for batch in batches)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return seen_rows, losses


def trained(
    address: str,
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    name: str = "chats",
    resume: str | None = None,
    low_rank: LoraConfig | None = None,
    **options: Any,
) -> tuple[list[list[int]], list[float], FeedSFTTrainer]:
    model = model_of()
    seen = Seen(model)
    with feed_of(address, name) as feed:
        trainer = FeedSFTTrainer(
            model, config(folder, **options), train_dataset=feed, processing_class=tokenizer,
            peft_config=low_rank,
        )  # fmt: skip
        if resume is None:
            assert feed.position.samples == 0, "the constructor takes no row"
        trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return seen.rows, losses, trainer


@pytest.mark.parametrize("name", ["chats", "pairs"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_rows_and_losses_are_those_of_a_plain_loop(
    name: str, accumulate: int, address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """With and without accumulation; gradient checkpointing is TRL's default."""
    rows, losses, trainer = trained(
        address, tmp_path, tokenizer, name, max_steps=3, gradient_accumulation_steps=accumulate,
        gradient_checkpointing=accumulate == 3,
    )  # fmt: skip
    wanted_rows, wanted_losses = plain_loop(address, 3, accumulate, name)

    assert rows == wanted_rows
    assert losses == pytest.approx(wanted_losses, rel=1e-5)
    assert trainer.feed_state()["sample"] == 3 * accumulate * 2


def test_a_resumed_run_goes_on_with_the_next_row(
    address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """By the checkpoint of the SFTTrainer."""
    options = {"max_steps": 4, "gradient_accumulation_steps": 2}
    rows, losses, _ = trained(
        address, tmp_path, tokenizer, save_strategy="steps", save_steps=2, **options
    )
    checkpoint = str(tmp_path / "checkpoint-2")
    found, resumed, _ = trained(
        address, tmp_path / "resumed", tokenizer, resume=checkpoint, **options
    )

    assert found == rows[8:]
    assert resumed == losses


def test_an_adapter_of_low_rank_has_the_rows_of_the_model_and_goes_on_from_its_checkpoint(
    address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """By peft; the checkpoint has the adapter alone, and the position of the feed."""
    low_rank = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    options = {"save_strategy": "steps", "save_steps": 2, "low_rank": low_rank}
    whole, _, _ = trained(address, tmp_path / "whole", tokenizer, max_steps=4)
    rows, losses, trainer = trained(address, tmp_path, tokenizer, max_steps=4, **options)
    checkpoint = str(tmp_path / "checkpoint-2")
    found, resumed, _ = trained(
        address, tmp_path / "resumed", tokenizer, resume=checkpoint, max_steps=4, **options
    )

    assert rows == whole
    assert found == rows[4:]
    assert resumed == losses
    weights = load_file(tmp_path / "checkpoint-4" / "adapter_model.safetensors")
    assert all("lora" in name for name in weights)
    assert trainer.feed_state()["sample"] == 8


def test_an_evaluation_of_padded_rows_is_the_mean_over_their_targets(
    address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """One chat a row; the last batch is filled up."""
    with feed_of(address) as feed, feed_of(address, order="padded") as validation:
        trainer = FeedSFTTrainer(
            model := model_of(),
            config(tmp_path, max_steps=1),
            train_dataset=feed,
            eval_dataset=validation.epoch(0, tail="pad"),
            processing_class=tokenizer,
        )
        found = trainer.evaluate()["eval_loss"]
        total, count = 0.0, 0
        model.eval()
        for x, y in validation.epoch(0, tail="pad"):
            with torch.no_grad():
                logits = model(input_ids=x, use_cache=False).logits
            total += cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum").item()
            count += int((y != -100).sum())

    assert found == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"packing": True}, r'^packing: was done before.*order="packed"'),
        ({"assistant_only_loss": True}, r"^assistant_only_loss: was done before"),
        ({"completion_only_loss": True}, r"^completion_only_loss: was done before"),
    ],
)
def test_what_was_done_at_ingest_is_not_asked_for_again(
    options: dict[str, Any],
    named: str,
    address: str,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
) -> None:
    """It would be ignored, and its user would not know."""
    with feed_of(address) as feed, pytest.raises(InvalidRequest, match=named):
        FeedSFTTrainer(
            model_of(),
            config(tmp_path, **options),
            train_dataset=feed,
            processing_class=tokenizer,
        )


# --- without the adapter ---


def test_without_the_adapter_the_sft_trainer_refuses_a_feed(
    address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    """It takes datasets of Hugging Face alone."""
    with feed_of(address) as feed, pytest.raises(TypeError, match="must be a `Dataset`"):
        SFTTrainer(model_of(), config(tmp_path), train_dataset=feed, processing_class=tokenizer)


def test_without_the_adapter_the_constructor_takes_rows(
    address: str, tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: Any
) -> None:
    """A feed that passes for such a dataset has lost its first rows before the first step."""
    read: Callable[[RemoteBatches], Any] = lambda feed: (  # noqa: E731
        batch.as_kwargs("transformers") for batch in feed.batches()
    )
    with feed_of(address) as feed:
        dataset = type(
            "Rows", (), {"__iter__": lambda _: read(feed), "column_names": ["input_ids"]}
        )
        monkeypatch.setattr("trl.trainer.sft_trainer.IterableDataset", dataset)
        given = config(tmp_path, max_steps=1, dataset_kwargs={"skip_prepare_dataset": True})
        SFTTrainer(model_of(), given, train_dataset=dataset(), processing_class=tokenizer)
        assert feed.position.samples == 2
