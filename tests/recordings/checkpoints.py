"""The checkpoints that are recorded: one state, as trainers save it by torch and by safetensors."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

CASE = "a mixture with stages and a redaction"
"""Whose state it is."""
FOLDER = "checkpoints"
PLACES = {
    "trainer.pt": "loader",
    "trainer.safetensors": "loader",
    "distributed": "data.loader",
}
"""By file or folder: where in it the state is."""


def write_checkpoints(folder: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint of each kind."""
    folder.mkdir(exist_ok=True)
    model = {"w": torch.ones(4)}
    torch.save({"model": model, "loader": state}, folder / "trainer.pt")
    save_file(model, folder / "trainer.safetensors", {"loader": json.dumps(state)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not distributed
        dcp.save({"model": model, "data": {"loader": state}}, checkpoint_id=folder / "distributed")
