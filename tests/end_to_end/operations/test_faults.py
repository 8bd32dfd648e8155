"""The brief form of `python -m tests.faults`: each fault against real servers, a few times."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.faults.__main__ import EXPERIMENTS, Experiment, line


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.alone] if one.is_timed else [])
        for one in EXPERIMENTS
    ],
)
def test_no_fault_loses_repeats_or_corrupts_a_row(experiment: Experiment, tmp_path: Path) -> None:
    """And each of them hit what was serving, or it would have shown nothing."""
    if experiment.needs_root and (os.geteuid() != 0 or shutil.which("tc") is None):
        pytest.skip("needs root, and tc of iproute2")

    # A time is the best of three: the machine has other things to do.
    for number in range(3 if experiment.is_timed else 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        report = experiment.inject(folder, experiment.brief, 1)
        assert (report.lost, report.repeated, report.corrupted) == (0, 0, 0), line(report)
        if not report.failures:
            return

    pytest.fail(line(report))
