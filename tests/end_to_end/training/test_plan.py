"""tokenfeed plan: what it says is what a feed then reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client import Mixture, RemoteBatches
from tests.conftest import ROOT, Serve, WriteTokens
from tests.support.packed_corpora import random_lengths, write_corpus
from tokenfeed.tools.__main__ import main

T, ROWS = 8, {"web": 60, "code": 40, "math": 10}
FILE = """
order = "shuffled"

[[stages]]
weights = {web = 0.7, code = 0.3}

[[stages]]
first_tokens = 1_001
weights = {web = 3, code = 3, math = 4}

[[stages]]
first_sample = 260
weights = {web = 1, math = 1}

[sources.math]
max_epochs = 4

[sources.code]
order = "random"
"""
# Stage 0 begins with blocks of 100, so stage 1 begins at 200; math has 40 samples, 4 in a block of
# 10, so they last for 6 blocks up to 260, and 8 more of 2 samples each up to 292.
END = 292

Captured = pytest.CaptureFixture[str]
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def paths(write_tokens: WriteTokens) -> dict[str, Path]:
    """Corpora of different sizes."""
    random = np.random.default_rng(3)
    return {
        name: write_tokens(random.integers(1, 60_000, rows * T + 1), f"{name}.bin")
        for name, rows in ROWS.items()
    }


@pytest.fixture
def target(paths: dict[str, Path]) -> str:
    """The corpora, as local files."""
    return "file:" + ",".join(f"{name}={path}" for name, path in paths.items())


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A mixture that ends when math is exhausted."""
    path = tmp_path / "mixture.toml"
    path.write_text(FILE)
    return path


@pytest.fixture
def plan(capsys: Captured) -> Plan:
    """Run the command, and return what it prints as JSON."""

    def run(*words: object) -> dict[str, Any]:
        assert main(["plan", *map(str, words), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

    return run


def test_the_plan_has_the_samples_that_a_feed_reads(
    serve: Serve, paths: dict[str, Path], target: str, mixture: Path, plan: Plan
) -> None:
    """Of each source, up to the sample where the mixture ends; from a server and from files."""
    data = [word for name, path in paths.items() for word in ("--data", f"{name}={path}")]
    server = serve(*data)
    words = (mixture, "--tokens", "1e4", "--context-length", T)

    found = plan(*words, server.address)

    assert plan(*words, target) == found
    with RemoteBatches(server.address, 1, T, mixture=Mixture.load(mixture)) as feed:
        read = len(list(feed))
        sources = feed.stats().sources
    assert found["end_sample"] == read == END
    assert found["ended_by"] == "math"
    for name, stats in sources.items():
        planned = found["sources"][name]
        assert (planned["samples"], planned["tokens"]) == (stats.samples, stats.tokens)
        assert planned["epochs"] == stats.epochs
    assert found["sources"]["math"]["exhausted"] == {"sample": END, "tokens": END * T, "stage": 2}
    assert found["sources"]["web"]["rows_per_epoch"] == ROWS["web"]
    assert found["sources"]["code"]["epochs"] is None
    assert [stage["first_sample"] for stage in found["stages"]] == [0, 200, 260]
    assert [stage["asked_sample"] for stage in found["stages"]] == [0, 126, 260]


def test_the_plan_has_the_tokens_of_the_groups_that_are_in_use(
    target: str, mixture: Path, plan: Plan, capsys: Captured
) -> None:
    """Each source has a part of one budget, by the first weight that it has."""
    mixture.write_text(FILE.replace('"shuffled"', '"blocks"'))
    words = (mixture, "--tokens", "1e4", "--context-length", T, "--group-tokens", 2**26, target)

    found = plan(*words)["sources"]
    main(["plan", *map(str, words)])

    # 0.7 of 128 blocks; `random` has no groups; 0.4 of 128 blocks.
    groups = {name: source["group_tokens"] for name, source in found.items()}
    assert groups == {"web": 64 * 2**19, "code": None, "math": 32 * 2**19}
    shown = "groups of blocks: 50,331,648 tokens at a time (web 33,554,432, math 16,777,216)"
    assert shown in capsys.readouterr().out


def test_the_plan_is_readable(target: str, mixture: Path, capsys: Captured) -> None:
    """Every number with its unit, and the steps if the batch size is known."""
    words = ["--tokens", "1e4", "--context-length", str(T), "--global-batch-size", "1"]

    assert main(["plan", str(mixture), *words, target]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "mixture of 3 sources, up to sample 1,250 (10,000 tokens), 8 tokens a sample",
        "",
        "stage 0: from sample 0 on, blocks of 100 samples",
        "  source  weight  asked  share  samples  tokens  epochs",
        "  web         70   70 %   70 %      140   1,120    2.33",
        "  code        30   30 %   30 %       60     480       -",
        "",
        "stage 1: from sample 200 (1,600 tokens) on, blocks of 10 samples",
        "  asked for at sample 126: 74 samples late, 74.0 steps of 1",
        "  source  weight  asked  share  samples  tokens  epochs",
        "  web          3   30 %   30 %       18     144    0.30",
        "  code         3   30 %   30 %       18     144       -",
        "  math         4   40 %   40 %       24     192    2.40",
        "",
        "stage 2: from sample 260 (2,080 tokens) on, blocks of 2 samples",
        "  source  weight  asked  share  samples  tokens  epochs",
        "  web          1   50 %   50 %       16     128    0.27",
        "  math         1   50 %   50 %       16     128    1.60",
        "",
        "Some stages begin more than 50 steps late. Smaller blocks begin them earlier. Write this "
        "into the file, with weights that are shares such as 0.7:",
        "  block = 50",
        "All shares stay exact.",
        "",
        "in all stages:",
        "  source    share  samples  tokens  epochs  max_epochs",
        "  web     59.59 %      174   1,392    2.90           -",
        "  code    26.71 %       78     624       -           -",
        "  math     13.7 %       40     320    4.00           4",
        "",
        "math is exhausted at sample 292 (2,336 tokens), in stage 2, and the mixture ends",
    ]


def test_the_plan_has_the_share_of_positions_with_a_target(
    serve: Serve, tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """What is not padding and no border, by which the tokens of a source are fewer than it says."""
    orders: dict[str, tuple[str, str | None]] = {
        "notes": ("packed", None),
        "chat": ("padded", "cut"),
        "short": ("padded", "truncate"),
        "plain": ("shuffled", None),
    }
    corpora = {
        name: write_corpus(tmp_path / name, random_lengths(seed, T), name)
        for seed, name in enumerate(orders)
    }
    shares = {"plain": 1.0}
    for name in ("notes", "chat", "short"):
        rows = corpora[name].rows(orders[name], T)
        targets = sum(n - 1 for row in rows for _, _, n in row)
        shares[name] = targets / (len(rows) * T)
    lines = [f"[sources.{name}]\norder = '{order}'" for name, (order, _) in orders.items()]
    lines.insert(3, "long = 'truncate'")
    mixture = tmp_path / "of-documents.toml"
    weights = ", ".join(f"{name} = 1" for name in orders)
    mixture.write_text("\n".join([f"weights = {{{weights}}}", *lines]))
    words = [word for corpus in corpora.values() for word in corpus.words]
    command = (mixture, "--tokens", "1e4", "--context-length", T)
    address = serve(*words).address

    found = plan(*command, address)

    files = ",".join(corpus.target.removeprefix("file:") for corpus in corpora.values())
    assert plan(*command, f"file:{files}") == found
    assert {name: one["target_share"] for name, one in found["sources"].items()} == shares
    assert 0.3 < shares["chat"] < shares["notes"] < 0.99
    assert main(["plan", *map(str, command), address]) == 0
    total = capsys.readouterr().out.partition("in all stages:\n")[2].splitlines()
    assert total[0].endswith("  targets")
    columns = {line.split()[0]: line.split()[-2:] for line in total[1 : 1 + len(orders)]}
    assert columns == {name: [f"{100 * share:.4g}", "%"] for name, share in shares.items()}


def test_smaller_blocks_do_what_the_plan_says(mixture: Path, target: str, plan: Plan) -> None:
    """The file that it asks for has all stages in time."""
    words = ("--tokens", "1e4", "--context-length", T, "--global-batch-size", 1)
    found = plan(mixture, *words, target)
    assert found["stages"][1]["delay_steps"] == 74

    mixture.write_text(f"block = {found['smaller_blocks']['block']}\n{FILE}")

    found = plan(mixture, *words, target)
    assert found["stages"][1]["delay_steps"] == 24
    assert found["smaller_blocks"] is None


def test_a_state_shows_what_was_seen_and_what_comes(
    mixture: Path, target: str, tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """With the stages of the state, and from its sample on."""
    state = tmp_path / "state.json"
    with RemoteBatches(target, 1, T, mixture=Mixture.load(mixture), start_sample=30) as feed:
        for _ in range(100):
            next(feed)
        feed.skip(95)
        feed.change_mixture({"web": 1}, at_sample=300)
        seen = feed.stats().sources
        state.write_text(json.dumps(feed.state_dict()))
        rest = feed.stats().samples

    found = plan("--state", state, "--tokens", 400 * T, target)

    assert found["first_sample"] == rest == 225
    assert found["end_sample"] == 400
    assert [stage["first_sample"] for stage in found["stages"]] == [200, 260, 300]
    assert [stage["stage"] for stage in found["stages"]] == [1, 2, 3]
    for name, stats in seen.items():
        assert found["sources"][name]["seen"] == stats._asdict()
    assert found["sources"]["code"]["samples"] + found["sources"]["math"]["samples"] < 75
    assert found["sources"]["web"]["samples"] > 100
    assert sum(source["samples"] for source in found["sources"].values()) == 400 - 225
    assert found["sources"]["math"]["epochs_at_end"] == 4.4, "max_epochs is not part of a state"
    assert main(["plan", "--state", str(state), "--tokens", str(400 * T), target]) == 0
    text = capsys.readouterr().out
    web = seen["web"]
    assert text.startswith("mixture of 3 sources, from sample 225 on up to sample 400 (3,200 tok")
    assert "\nseen before sample 225, by the history of the state:\n  source  samples" in text
    assert re.search(rf"\n  web +{web.samples} +{web.tokens} +{web.epochs:.2f}\n", text)
    assert re.search(r"\n  math .* 4\.40 +-\n", text)


def test_a_state_that_another_mixture_goes_on_from_is_planned_if_that_is_allowed(
    mixture: Path, target: str, tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """As `load_state_dict` would."""
    state = tmp_path / "state.json"
    with RemoteBatches(target, 1, T, mixture=Mixture.load(mixture), start_sample=205) as feed:
        next(feed)
        state.write_text(json.dumps(feed.state_dict()))
    mixture.write_text('order = "shuffled"\nweights = {web = 1, math = 1}')
    words = (mixture, "--state", state, "--tokens", 500 * T, target)

    assert main(["plan", *map(str, words)]) == 1
    assert capsys.readouterr().err.startswith("error: mixture: stage 0 of the state, from sample 0")
    other = ["--allow-mixture", "--context-length", str(2 * T)]
    assert main(["plan", *map(str, words), *other]) == 1
    assert f"context-length: the state was saved with {T}, but this" in capsys.readouterr().err

    found = plan(*words, "--allow-mixture")
    assert [stage["first_sample"] for stage in found["stages"]] == [200, 210]
    assert found["stages"][1]["sources"].keys() == {"web", "math"}


def test_a_state_is_planned_with_datasets_that_are_named_otherwise(
    mixture: Path, paths: dict[str, Path], target: str, tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """As a feed that loads it; and another corpus is refused as by the feed."""
    state = tmp_path / "state.json"
    with RemoteBatches(target, 1, T, mixture=Mixture.load(mixture), start_sample=205) as feed:
        next(feed)
        state.write_text(json.dumps(feed.state_dict()))
    words = ("--state", state, "--tokens", 1000 * T)
    found = plan(mixture, *words, target)
    renamed = {"pages": paths["web"], "code": paths["code"], "math": paths["math"]}
    other = "file:" + ",".join(f"{name}={path}" for name, path in renamed.items())
    mixture.write_text(FILE.replace("web =", "pages ="))

    again = plan(mixture, *words, other)

    assert again["end_sample"] == found["end_sample"] == END
    assert again["sources"]["pages"] == found["sources"]["web"]
    mixture.write_text(FILE)
    wrong = other.replace("pages=", "web=").replace(str(paths["web"]), str(paths["code"]))
    assert main(["plan", str(mixture), *map(str, words), wrong]) == 1
    problem = "error: mixture.web: the state was saved with fingerprint "
    assert capsys.readouterr().err.startswith(problem)
    assert main(["plan", *map(str, words), wrong]) == 1
    assert capsys.readouterr().err.startswith(problem)


def test_a_run_over_one_dataset_is_planned_from_its_state(
    paths: dict[str, Path], tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """Its tokens are those of all its rows, of which the first ones were shorter."""
    state, target = tmp_path / "state.json", f"file:{paths['web']}"
    with RemoteBatches(target, 2, T, order="shuffled", seed=3) as feed:
        for _ in range(10):
            next(feed)
        before = feed.state_dict()
    with RemoteBatches(target, 2, 2 * T, order="shuffled", seed=3) as feed:
        feed.load_state_dict(before, allow=("context_length", "mid_epoch"))
        for _ in range(5):
            next(feed)
        state.write_text(json.dumps(feed.state_dict()))

    found = plan("--state", state, "--tokens", 20 * T + 40 * 2 * T, target)

    assert (found["first_sample"], found["end_sample"]) == (30, 60)
    assert [each["first_token"] for each in found["stages"]] == [20 * T]
    (web,) = found["sources"].values()
    assert (web["samples"], web["tokens"]) == (30, 30 * 2 * T)
    assert web["seen"]["tokens"] == 20 * T + 10 * 2 * T
    assert web["epochs_at_end"] == (10 + 40) / 30
    words = ["plan", "--state", str(state), "--tokens", "800", target]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "mixture of 1 source, from sample 30 on up to sample 60 (800 tokens), 16 tokens a sample"
    )
    assert "web 1 - 100 % 30 480 1.00".split() in [line.split() for line in lines]


def test_a_mixture_behind_a_run_of_shorter_rows_is_planned_by_the_tokens_of_all(
    mixture: Path, target: str, tmp_path: Path, plan: Plan, capsys: Captured
) -> None:
    """They are more samples than those of the mixture alone; the shorter ones are half of it."""
    state = tmp_path / "state.json"
    with RemoteBatches(target, 2, T // 2, dataset="web", order="random") as feed:
        feed.change_context_length(T, at_sample=200)
        for _ in range(101):
            next(feed)
        state.write_text(json.dumps(feed.state_dict()))
    mixture.write_text('weights = {web = 7, code = 3}\norder = "random"')
    words = ["--context-length", str(T), "--state", str(state), "--allow-mixture"]

    found = plan(mixture, *words, "--tokens", 100 * T + 61 * T, target)

    assert (found["first_sample"], found["end_sample"]) == (201, 261)
    assert found["sources"]["web"]["seen"] == {"samples": 201, "tokens": 101 * T, "epochs": None}
    assert main(["plan", str(mixture), *words, "--tokens", str(100 * T), target]) == 1
    assert "are 200 samples of a run that is at 201" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("mixture.toml --tokens 10B", "--tokens: '10B' is not a number of tokens, such as 1e12"),
        ("mixture.toml --tokens 1.5", "--tokens: 1.5 is not a whole number above 0"),
        ("mixture.toml --tokens 0", "--tokens: 0 is not a whole number above 0"),
        ("mixture.toml --tokens 1e99", "--tokens: 1e99 are 1250"),
        ("mixture.toml --tokens=-5", "--tokens: '-5' is not a number of tokens"),
        ("mixture.toml --tokens 9 --context-length 0", "--context-length: 0 is not in [1, "),
        (
            "mixture.toml --tokens 9 --context-length 900",
            "--context-length: 900 is not in [1, 481)",
        ),
        ("mixture.toml --tokens 9 --seed -1", "--seed: -1 is not in [0, "),
        ("mixture.toml --tokens 9 --global-batch-size 0", "--global-batch-size: 0 is not in [1, "),
        ("none.toml --tokens 9", "none.toml: cannot be read: No such file or directory"),
        ("state.json --tokens 9", "state.json: is not TOML: "),
        ("other.toml --tokens 9", "dataset: 'news' is not in the target, only web, code"),
        ("few.toml --tokens 9", "sources.math.max_epochs: is 1, which are 10 samples, but the "),
        ("random.toml --tokens 9", "sources.web.max_epochs: is 1, but random-1 is endless"),
        ("--state none.json --tokens 9", "--state: none.json cannot be read: No such file"),
        ("--state mixture.toml --tokens 9", "--state: mixture.toml is not JSON: "),
        ("--state list.json --tokens 9", "--state: is list, not a dict; pass what state_dict()"),
        ("--state state.json --tokens 9", "--tokens: 9 are 2 samples of a run that is at 3"),
        ("mixture.toml --state state.json --tokens 9e9", "mixture: the state is of one dataset"),
    ],
)
def test_what_cannot_be_planned_ends_in_one_line(
    words: str,
    problem: str,
    mixture: Path,
    target: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is wrong is named, and no traceback follows."""
    folder = mixture.parent
    (folder / "other.toml").write_text("weights = {web = 1, news = 1}")
    weights = "weights = {web = 1, math = 11}"
    (folder / "few.toml").write_text(f'order = "shuffled"\n{weights}\nsources.math.max_epochs = 1')
    (folder / "random.toml").write_text(f'order = "random"\n{weights}\nsources.web.max_epochs = 1')
    (folder / "list.json").write_text("[1]")
    with RemoteBatches(target, 3, T, dataset="web") as feed:
        next(feed)
        (folder / "state.json").write_text(json.dumps(feed.state_dict()))
    monkeypatch.chdir(folder)
    length = [] if "--context-length" in words else ["--context-length", str(T)]

    assert main(["plan", *words.split(), *length, target]) == 1

    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert problem in line
    assert line.count("\n") == 1


def test_a_server_that_does_not_answer_is_named(mixture: Path, capsys: Captured) -> None:
    words = ["--tokens", "1e4", "--context-length", str(T), "localhost:1"]

    assert main(["plan", str(mixture), *words]) == 1

    assert capsys.readouterr().err.startswith("error: localhost:1: ")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["localhost:1", "--tokens", "9"],
            "pass the file of a mixture, or --state, and the target",
        ),
        (["a", "--tokens", "9", "b", "c"], "unrecognized arguments: c"),
        (["a", "b"], "the following arguments are required: --tokens"),
        (["--tokens", "9"], "pass the file of a mixture, or --state, and the target"),
        (["a", "--tokens", "9", "b", "--wrong"], "unrecognized arguments: b --wrong"),
    ],
)
def test_a_wrong_command_line_is_answered_by_the_usage(
    words: list[str], problem: str, capsys: Captured
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *words])

    assert caught.value.code == 2
    assert re.search(f"plan: error: {re.escape(problem)}", capsys.readouterr().err)


def test_the_target_may_stand_behind_options_or_before_them(
    mixture: Path, target: str, plan: Plan
) -> None:
    options = ("--tokens", "1e4", "--context-length", T)

    assert plan(mixture, target, *options) == plan(mixture, *options, target)
    assert plan(*options, mixture, target) == plan(mixture, *options, target)


def test_a_plan_needs_no_torch(mixture: Path, target: str) -> None:
    """It is asked for before a GPU is paid for, on a machine that has none."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from tokenfeed.tools.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["plan", mixture, "--tokens", "1e4", "--context-length", str(T), target]

    found = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True
    )

    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith("mixture of 3 sources")


def test_targets_of_documents_are_said_to_be_those_without_masks(
    tmp_path: Path, capsys: Captured
) -> None:
    """Of pairs and chats fewer count, which a plan cannot know: it reads no mask."""
    corpus = write_corpus(tmp_path / "chats", [[5, 9, 9]], "chats")
    path = tmp_path / "mixture.toml"
    path.write_text("weights = {chats = 1}\n")
    asked = ["plan", str(path), corpus.target, "--tokens", "160", "--context-length", "16"]

    assert main([*asked, "--order", "padded"]) == 0

    shown = capsys.readouterr().out
    assert "  targets\n" in shown
    assert "  targets: share of the positions of x, without regard to loss masks\n" in shown
