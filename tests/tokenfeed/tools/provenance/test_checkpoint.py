"""States are found in the checkpoints that trainers write, and hostile ones do nothing."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from client import InvalidRequest, RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support import mixtures
from tests.support.commands import run_ranks
from tests.support.states import state_of
from tokenfeed.client.feed.history import Run
from tokenfeed.client.feed.state import read_state
from tokenfeed.sampling import orders
from tokenfeed.stream.stage import Corpus
from tokenfeed.stream.stream import Stream
from tokenfeed.tools.provenance.checkpoint import CheckpointState, chosen, read_states

T = 8
STREAM = Stream.of_dataset("web", orders.latest("shuffled"), 2**63 + 1, T)
STATE = state_of(
    STREAM.known({0: Corpus(b"\xab" * 32)}), 91, [Run(0, 0, 91, 7, 1)], {(0, 3): "cd" * 32}
)
Save = Callable[[dict[str, Any], Path], None]


def save_distributed(values: dict[str, Any], folder: Path, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not distributed
        dcp.save(values, checkpoint_id=folder, **options)


def save_json(state: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps({"step": 13, "feed": state}))


def save_torch(state: dict[str, Any], path: Path) -> None:
    torch.save({"model": {"w": torch.ones(300)}, "loaders": OrderedDict(feed=[1, state])}, path)


def save_safetensors(state: dict[str, Any], path: Path) -> None:
    metadata = {"format": "pt", "note": "{no JSON", "feed": json.dumps({"state": state})}
    save_file({"w": torch.ones(300)}, path, metadata)


def save_flattened(state: dict[str, Any], path: Path) -> None:
    model = {"w": torch.ones(300), "parts": [{"a": 1, "b": torch.ones(2)}]}
    save_distributed({"model": model, "data": {"feed": state}}, path)


def save_whole(state: dict[str, Any], path: Path) -> None:
    planner = DefaultSavePlanner(flatten_state_dict=False)
    save_distributed({"feed": state, "step": 3}, path, planner=planner)


def save_like_accelerate(state: dict[str, Any], path: Path) -> None:
    path.mkdir()
    torch.save({"_index": 3, "state": state}, path / "custom_checkpoint_0.pkl")
    (path / "random_states_0.pkl").write_bytes(pickle.dumps(random.getstate()))
    (path / "scheduler.bin").write_bytes(b"")
    (path / "tokenizer.model").write_bytes(b"\0")


def save_like_lightning(state: dict[str, Any], path: Path) -> None:
    save_distributed({"model": {"w": torch.ones(300)}}, path)
    torch.save({"loops": {"fit_loop": {"state": state}}}, path / "meta.pt")


SAVED: dict[str, tuple[Save, str]] = {
    "JSON": (save_json, "feed"),
    "torch": (save_torch, "loaders.feed.1"),
    "safetensors": (save_safetensors, "feed.state"),
    "flattened": (save_flattened, "data.feed"),
    "not flattened": (save_whole, "feed"),
    "Accelerate": (save_like_accelerate, "custom_checkpoint_0.pkl.state"),
    "Lightning": (save_like_lightning, "meta.pt.loops.fit_loop.state"),
}


def test_the_states_of_real_feeds_are_found_in_every_kind_of_checkpoint(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """Of one dataset and of a mixture, with a skip: they come back as they were saved."""
    paths = mixtures.write_sources(write_tokens)
    server = mixtures.served(serve, paths)
    states = []
    options: list[dict[str, Any]] = [
        {"mixture": mixtures.MIXTURE},
        {"dataset": "web", "order": "shuffled", "seed": 2**63 + 1},
    ]
    for each in options:
        with RemoteBatches(server.address, mixtures.B, T, device="cpu", **each) as feed:
            for _ in range(40):
                next(feed)
            feed.skip(3)
            next(feed)
            states.append(feed.state_dict())

    for number, state in enumerate(states):
        for name, (save, where) in SAVED.items():
            path = tmp_path / f"{name} {number}"
            save(state, path)
            assert read_states(path) == [CheckpointState(where, read_state(state))], name


@pytest.mark.slow
def test_the_state_is_found_in_a_distributed_checkpoint_of_two_processes(
    serve: Serve, write_tokens: WriteTokens, tmp_path: Path
) -> None:
    """Its values are spread over the files of the processes."""
    server = serve("--data", write_tokens(range(5000)))
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys, json\n"
        "from pathlib import Path\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "import torch.distributed.checkpoint as dcp\n"
        "from client import RemoteBatches\n"
        "target, folder = sys.argv[1], Path(sys.argv[2])\n"
        'dist.init_process_group("gloo")\n'
        'with RemoteBatches(target, 5, 8, order="shuffled", seed=9) as feed:\n'
        "    for _, _ in zip(range(4), feed): pass\n"
        '    values = {"feed": feed, "of": {str(dist.get_rank()): torch.ones(9)}}\n'
        '    dcp.save(values, checkpoint_id=folder / "saved")\n'
        '    (folder / "state.json").write_text(json.dumps(feed.state_dict()))\n'
        "dist.destroy_process_group()\n"
    )
    run_ranks(2, script, server.address, tmp_path)

    state = json.loads((tmp_path / "state.json").read_text())
    assert len(list((tmp_path / "saved").glob("*.distcp"))) == 2
    assert read_states(tmp_path / "saved") == [CheckpointState("feed", read_state(state))]
    assert state["history"] == [[0, 0, 40, 5, 2]]


def test_all_states_of_a_checkpoint_are_found(tmp_path: Path) -> None:
    """A trainer has a feed for validation too."""
    other, path = STATE | {"sample": 92}, tmp_path / "states.json"
    path.write_text(json.dumps({"a": other, "b": {"train": [STATE], "no": {"version": 6}}}))

    found = read_states(path)

    assert found == [
        CheckpointState("a", read_state(other)),
        CheckpointState("b.train.0", read_state(STATE)),
    ]
    assert chosen(found, "b.train.0").state == read_state(STATE)
    with pytest.raises(InvalidRequest, match=r"^feed: is missing; .* has 2: a, b\.train\.0$"):
        chosen(found, None)
    with pytest.raises(InvalidRequest, match=r"^feed: 'c' is no state of this .* a, b\.train\.0$"):
        chosen(found, "c")


@pytest.mark.parametrize("kind", SAVED)
def test_a_state_of_another_version_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    """Wherever it is: it is not said that there is none."""
    save, where = SAVED[kind]
    path = tmp_path / "later"
    save({**STATE, "later": 3, "version": 7}, path)

    with pytest.raises(InvalidRequest) as found:
        read_states(path)

    assert str(found.value) == (
        "state: has version 7, but this client reads 6; pass what state_dict() of "
        f"this release returned, which may be a part of your checkpoint ({path}: {where})"
    )


def test_a_vocabulary_is_no_state(tmp_path: Path) -> None:
    """Transformers writes the tokenizer into a checkpoint, and GPT-2's has each key as a word."""
    vocabulary = {"version": 9641, "sample": 39873, "stream": 5532, "history": 23569, "planes": 7}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    with pytest.raises(InvalidRequest, match="has no state of a feed"):
        read_states(tmp_path)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"feed": STATE}))

    (found,) = read_states(tmp_path)

    assert found.where == "trainer_state.json.feed"


def test_the_only_state_needs_no_name(tmp_path: Path) -> None:
    """Also where it is all of a file."""
    path = tmp_path / "state.json"
    path.write_text(json.dumps(STATE), "utf-8-sig")

    assert chosen(read_states(path), None) == CheckpointState("", read_state(STATE))
    assert chosen(read_states(path), "") == CheckpointState("", read_state(STATE))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"history": [[0, 5, 5, 7, 1]]}, "state.history[0].end_sample: 5 is not above"),
        ({"sample": -1}, "state.sample: -1 is not in"),
        ({"stream": [1, *STATE["stream"][1:]]}, "state.stream.hash: "),
    ],
)
def test_a_damaged_state_is_an_error_that_says_where_it_is(
    tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    """A wrong history is worse than none."""
    path = tmp_path / "states.json"
    path.write_text(json.dumps({"good": STATE, "bad": STATE | change}))

    with pytest.raises(InvalidRequest) as found:
        read_states(path)

    assert problem in str(found.value)
    assert str(found.value).endswith(f"({path}: bad)")


class Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def in_zip(payload: Payload, path: Path) -> None:
    torch.save({"feed": STATE, "x": payload}, path)


def in_old_file(payload: Payload, path: Path) -> None:
    torch.save({"feed": STATE, "x": payload}, path, _use_new_zipfile_serialization=False)


def in_pickle(payload: Payload, path: Path) -> None:
    path.write_bytes(pickle.dumps({"feed": STATE, "x": payload}))


def in_metadata(payload: Payload, path: Path) -> None:
    save_flattened(STATE, path)
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.planner_data = payload
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def in_flattened_value(payload: Payload, path: Path) -> None:
    save_flattened(STATE | {"planes": payload}, path)


def in_whole_value(payload: Payload, path: Path) -> None:
    save_whole(STATE | {"planes": payload}, path)


def in_file_of_a_folder(payload: Payload, path: Path) -> None:
    path.mkdir()
    in_zip(payload, path / "custom_checkpoint_0.pkl")


def in_torchscript(payload: Payload, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


@pytest.mark.parametrize(
    "save",
    [
        *(in_zip, in_old_file, in_pickle, in_metadata, in_flattened_value, in_whole_value),
        *(in_file_of_a_folder, in_torchscript),
    ],
)
def test_a_checkpoint_that_would_run_code_is_refused_and_runs_nothing(
    tmp_path: Path, save: Callable[[Payload, Path], None]
) -> None:
    """It may come from anyone."""
    made, path = tmp_path / "made", tmp_path / "checkpoint"
    save(Payload(made), path)

    with pytest.raises(InvalidRequest) as found:
        read_states(path)

    assert not made.exists()
    assert str(found.value).isprintable()
    assert len(str(found.value)) < 500
    assert "is refused" in str(found.value) or save in (in_old_file, in_pickle)


def test_a_distributed_checkpoint_of_python_3_11_2_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves members of enums by a call of getattr, which stays refused for all else."""
    encoding = torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(
        encoding, "__reduce_ex__", lambda self, _: (getattr, (encoding, self.name)), raising=False
    )
    save_flattened(STATE, tmp_path / "3.11.2")
    monkeypatch.undo()
    assert b"getattr" in (tmp_path / "3.11.2" / ".metadata").read_bytes()

    assert read_states(tmp_path / "3.11.2") == [CheckpointState("data.feed", read_state(STATE))]

    class Attribute:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr, ("", "join")

    metadata = pickle.loads((tmp_path / "3.11.2" / ".metadata").read_bytes())
    metadata.planner_data = Attribute()
    (tmp_path / "3.11.2" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(InvalidRequest, match=r"is refused: it names builtins\.getattr"):
        read_states(tmp_path / "3.11.2")


def test_a_distributed_checkpoint_names_no_file_outside_of_its_folder(tmp_path: Path) -> None:
    """It could have others read."""
    for name in ("../outside", "/etc/hostname", "a/../../b"):
        path = tmp_path / name.replace("/", "_")
        save_flattened(STATE, path)
        metadata = pickle.loads((path / ".metadata").read_bytes())
        for place in metadata.storage_data.values():
            place.relative_path = name
        (path / ".metadata").write_bytes(pickle.dumps(metadata))

        with pytest.raises(InvalidRequest, match=r"is refused: .* outside of the folder"):
            read_states(path)


@pytest.mark.parametrize("kind", ["torch", "safetensors", "flattened"])
def test_a_truncated_or_damaged_checkpoint_is_one_error(tmp_path: Path, kind: str) -> None:
    """Whatever byte is wrong: neither a traceback nor a hang."""
    save, _ = SAVED[kind]
    path = tmp_path / "checkpoint"
    save(STATE, path)
    file = path / ".metadata" if path.is_dir() else path
    content = file.read_bytes()
    draw = random.Random(1)
    # Of safetensors only the header is read.
    needed_bytes = 500 if kind == "safetensors" else len(content)
    damaged = [content[: draw.randrange(needed_bytes)] for _ in range(60)]
    for _ in range(120):
        place = draw.randrange(len(content))
        flipped = bytes([content[place] ^ (1 << draw.randrange(8))])
        damaged.append(content[:place] + flipped + content[place + 1 :])

    refused = 0
    for each in damaged:
        file.write_bytes(each)
        try:
            read_states(path)
        except InvalidRequest as error:
            assert str(error).isprintable()  # noqa: PT017
            refused += 1
    assert refused >= 60


def test_entries_that_are_cut_off_are_one_error(tmp_path: Path) -> None:
    """A process was killed while it saved."""
    path = tmp_path / "checkpoint"
    save_flattened(STATE, path)
    (file,) = path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:1000])

    with pytest.raises(InvalidRequest, match="is truncated, or its folder's metadata is wrong"):
        read_states(path)


def test_what_is_no_checkpoint_is_said_in_one_sentence(tmp_path: Path) -> None:
    """A wrong path is the most common mistake."""
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("hello")
    (tmp_path / "bytes").write_bytes(b"\x93NUMPY\x01" * 9)
    torch.save({"step": 3}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "other.json").write_text('{"step": 3}')
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    (tmp_path / "folder").mkdir()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer.json").write_text("{}")
    os.mkfifo(tmp_path / "fifo")
    problems = {
        "empty": "is empty",
        "text": "is not JSON: Expecting value: line 1 column 1 (char 0)",
        "old.pt": "is a pickle, as torch.save wrote before torch 1.6: load it with torch, and save "
        "it again",
        "bytes": "is neither JSON nor a file of torch.save or safetensors, or it is truncated",
        "other.json": "has no state of a feed: no dict with version, sample, stream, "
        "history, planes",
        "deep.json": "is nested too deeply for JSON",
        "folder": "is no checkpoint: it has no .metadata of torch.distributed.checkpoint, and no "
        ".json, .pt, .pth, .bin, .pkl, .ckpt, .safetensors",
        "logs": "has no state of a feed in trainer.json: no dict with version, sample, "
        "stream, history, planes",
        "fifo": "is neither a file nor a folder",
        "missing": "cannot be read: No such file or directory",
        "a\0b": "cannot be read: its name is not valid",
    }
    for name, problem in problems.items():
        with pytest.raises(InvalidRequest) as found:
            read_states(tmp_path / name)
        shown = str(tmp_path / name).replace("\0", "\\x00")
        assert str(found.value) == f"state: {shown} {problem}"
    with pytest.raises(InvalidRequest, match="/dev/zero is neither a file nor a folder"):
        read_states("/dev/zero")
    with pytest.raises(InvalidRequest, match="/proc/self/mem cannot be read: Input/output error"):
        read_states("/proc/self/mem")


def test_a_fifo_within_a_checkpoint_does_not_hang(tmp_path: Path) -> None:
    """Neither in place of the metadata, nor of a file."""
    path = tmp_path / "checkpoint"
    save_flattened(STATE, path)
    (file,) = path.glob("*.distcp")
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(InvalidRequest, match="distcp is neither a file nor a folder"):
        read_states(path)

    (path / ".metadata").unlink()
    os.mkfifo(path / ".metadata")
    os.mkfifo(path / "x.pt")
    with pytest.raises(InvalidRequest, match="metadata is neither a file nor a folder"):
        read_states(path)


def test_control_characters_of_names_are_never_printed(tmp_path: Path) -> None:
    """They could rewrite a terminal."""
    path = tmp_path / "a\x1b[2Jb.json"
    path.write_text(json.dumps({"\x1b[31mfeed\n": STATE, "\u202e": STATE}))

    states = read_states(path)

    assert [state.where for state in states] == ["\\x1b[31mfeed\\n", "\\u202e"]
    assert chosen(states, "\\x1b[31mfeed\\n").state == read_state(STATE)
    with pytest.raises(InvalidRequest) as found:
        read_states(tmp_path / "\x1b[2J")
    assert str(found.value).isprintable()


def test_values_that_contain_themselves_or_are_deep_do_not_end_badly(tmp_path: Path) -> None:
    """A checkpoint may be any graph of objects."""
    cycle: dict[str, Any] = {"feed": STATE}
    cycle["self"] = [cycle]
    torch.save(cycle, tmp_path / "cycle.pt")
    deep: list[Any] = [STATE]
    for _ in range(60):
        deep = [deep]
    torch.save({"deep": deep, "feed": STATE}, tmp_path / "deep.pt")
    torch.save({f"feed-{number}": STATE for number in range(1001)}, tmp_path / "many.pt")
    wide = tmp_path / "wide.json"
    wide.write_text(json.dumps([[]] * 1_000_001))

    assert read_states(tmp_path / "cycle.pt") == [CheckpointState("feed", read_state(STATE))]
    assert {state.where.count("0") for state in read_states(tmp_path / "deep.pt")} == {0, 61}
    with pytest.raises(InvalidRequest, match="has more than 1000 states of feeds"):
        read_states(tmp_path / "many.pt")
    with pytest.raises(InvalidRequest, match="has more than 1000000 dicts and lists"):
        read_states(wide)


def test_a_large_checkpoint_is_not_read_whole(tmp_path: Path) -> None:
    """Checkpoints of large models have hundreds of gigabytes, and a state a few kilobytes."""
    header = json.dumps({"__metadata__": {"feed": json.dumps(STATE)}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with torch.serialization.skip_data():
        torch.save({"w": torch.empty(3 << 30, dtype=torch.uint8), "f": STATE}, tmp_path / "m.pt")
    (tmp_path / "huge.json").write_text("{")
    for name in ("model.safetensors", "huge.json"):
        os.truncate(tmp_path / name, 3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert read_states(tmp_path / "model.safetensors") == [
        CheckpointState("feed", read_state(STATE))
    ]
    assert read_states(tmp_path / "m.pt") == [CheckpointState("f", read_state(STATE))]
    with pytest.raises(InvalidRequest, match="too large for JSON: 3221225472 bytes"):
        read_states(tmp_path / "huge.json")

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_values_that_are_compressed_far_too_well_are_refused(tmp_path: Path) -> None:
    """A small file could take all memory."""
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/version", "3\n")
        with archive.open("bomb/data.pkl", "w", force_zip64=True) as file:
            for _ in range(257):
                file.write(bytes(1 << 20))

    with pytest.raises(InvalidRequest, match="bytes of values besides its tensors; the maximum"):
        read_states(path)


BOMBS = {
    "memo": b"Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "memo as text": b"Np4294967295\n.",
    "frame": b"\x95" + struct.pack("<Q", 2**40) + b"N.",
    "bytes": b"\x8e" + struct.pack("<Q", 2**40) + b"x.",
    "deep key": b"})" + b"\x85" * 1_000_000 + b"Ns.",
    "deep key by memo": b"})" + b"q\x000h\x00\x85" * 300_000 + b"Ns.",
    "deep key by marks": b"}" + b"(" * 500_000 + b"t" * 500_000 + b"Ns.",
    "deep set": b"(" * 500_000 + b"\x91" * 500_000 + b".",
}
"""Behind its first two bytes, a pickle of protocol 2."""


def _write_bomb(kind: str, bomb: bytes, path: Path) -> None:
    pickled = b"\x80\x02" + bomb
    if kind == "metadata":
        path.mkdir()
        (path / ".metadata").write_bytes(pickled)
        return
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/version", "3\n")
        archive.writestr("x/byteorder", "little")
        archive.writestr("x/data.pkl", pickled)


@pytest.mark.parametrize("kind", ["metadata", "zip"])
def test_a_small_file_takes_neither_all_memory_nor_the_stack(kind: str, tmp_path: Path) -> None:
    """A pickle of 9 bytes took 64 GiB, and one of a megabyte crashed the process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    for name, bomb in BOMBS.items():
        path = tmp_path / name
        _write_bomb(kind, bomb, path)
        problem = "is damaged" if name == "bytes" else "is refused: it (has|is nested) "
        with pytest.raises(InvalidRequest, match=problem):
            read_states(path)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_without_torch_its_files_are_refused_with_the_cure(tmp_path: Path) -> None:
    """JSON and safetensors are read on any machine."""
    path = tmp_path / "m.pt"
    save_torch(STATE, path)
    save_json(STATE, tmp_path / "s.json")
    save_safetensors(STATE, tmp_path / "s.safetensors")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tokenfeed.tools.provenance.checkpoint import read_states\n"
        "for path in sys.argv[1:]:\n"
        "    try: print(read_states(path)[0].where)\n"
        "    except Exception as error: print(error)\n"
    )
    paths = [tmp_path / "s.json", tmp_path / "s.safetensors", path]

    lines = subprocess.run(
        [sys.executable, "-c", code, *paths], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert lines[:2] == ["feed", "feed.state"]
    assert lines[2].startswith(f"state: {path} is a file of torch.save; ")
    assert lines[2].endswith("pip install 'tokenfeed[torch]' (in a clone, '.[torch]')")
