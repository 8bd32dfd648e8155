"""Writes the recordings of this version: python -m tests.recordings

states.json has a state of every kind of feed and a hash of the rows behind it, checkpoints/ one of
them as trainers save it, exchange.json the requests and answers of the wire, redactions.jsonl the
list of a dataset, names.json what users write into scripts. Those of a released version are never
written again: every later version has to read them, and to know the names.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conftest import serving
from tests.recordings.checkpoints import CASE, FOLDER, write_checkpoints
from tests.recordings.corpora import list_of, target, words, write_corpora
from tests.recordings.exchange import Call, read, recording
from tests.recordings.names import names
from tests.recordings.states import CASES, recorded
from tokenfeed import __version__


def main(folder: Path) -> int:
    """Record all, and return the exit code.  folder: of the recordings of this version."""
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as serve:
        files = write_corpora(Path(name))
        states = {case: recorded(target(files), each)._asdict() for case, each in CASES.items()}
        calls: list[Call] = []
        with recording(serve(*words(files)).address, calls) as address:
            rows = read(address)
        folder.mkdir(exist_ok=True)
        shutil.copyfile(list_of(files), folder / "redactions.jsonl")
    _write(folder / "states.json", states)
    write_checkpoints(folder / FOLDER, states[CASE]["state"])
    _write(folder / "exchange.json", {"rows": rows, "calls": [call.plain() for call in calls]})
    _write(folder / "names.json", names())
    return 0


def _write(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(f"{path.parent.name}/{path.name} {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent / __version__))
