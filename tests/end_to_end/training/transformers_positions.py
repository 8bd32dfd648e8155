"""Batches in models of transformers: what `as_kwargs` passes keeps documents apart and shifts no
target twice, and what goes wrong without it.

transformers is not installed where the tests run, so pytest collects this file only by its name:

    pip install transformers
    python -m pytest -s tests/end_to_end/training/transformers_positions.py
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from tests.support.rows_with_documents import batch_with_documents
from tokenfeed.client.device.rich_batch import RichBatch

VOCABULARY, T = 97, 64
STARTS = [[20, 37], [1, 30, 63], []]


def model_of(family: str, attention: str) -> transformers.PreTrainedModel:
    """A tiny new model, with weights so large that tokens matter to each other."""
    common = {
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": None,
        "initializer_range": 0.3,
        "attn_implementation": attention,
    }
    if family == "gpt2":
        config = transformers.GPT2Config(
            n_positions=T,
            n_embd=32,
            n_layer=2,
            n_head=4,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            **common,
        )
    else:
        kind = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}[family]
        config = kind(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=T,
            **common,
        )
    torch.manual_seed(4)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def packed() -> RichBatch:
    """Three rows of several documents, as they come from a server."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (len(STARTS), T + 1))
    return batch_with_documents(tokens, STARTS)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_logits_of_a_packed_row_are_those_of_its_documents_alone(
    family: str, attention: str
) -> None:
    """Without a mask and a cache, transformers finds documents by their positions."""
    torch.set_num_threads(1)
    model, batch = model_of(family, attention), packed()
    lengths, _ = batch.doc_lens()
    with torch.no_grad():
        alone = [
            model(input_ids=document[None], use_cache=False).logits[0]
            for row, own in zip(batch.x, lengths, strict=True)
            for document in row.split(own[own > 0].tolist())
        ]
        together = model(**batch.as_kwargs("transformers"))
        unmasked = model(input_ids=batch.x, use_cache=False).logits
        cached = model(input_ids=batch.x, position_ids=batch.positions).logits
        shifted_twice = model(input_ids=batch.x, labels=batch.y, use_cache=False).loss
    expected = torch.cat(alone).view_as(together.logits)

    difference = (together.logits - expected).abs().max().item()
    leak = (unmasked - expected).abs().max().item()
    print(f"\n{family} {attention}: {difference:.1e} with positions, {leak:.2f} without")

    assert difference < 1e-5
    # Or the line above would hold for a model that ignores what it has read.
    assert leak > 1e-2
    assert (cached - expected).abs().max() > 1e-2, "with a cache, positions are no documents"
    loss = cross_entropy(together.logits.flatten(0, 1), batch.y.flatten())
    assert together.loss.item() == pytest.approx(loss.item(), rel=1e-6)
    assert shifted_twice.item() == pytest.approx(loss.item(), rel=0.2), "the loss looks sane"
    assert shifted_twice.item() != pytest.approx(loss.item(), rel=1e-3)
