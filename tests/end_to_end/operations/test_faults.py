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

    report = experiment.inject(tmp_path, experiment.brief, 1)

    assert not report.failures, line(report)
