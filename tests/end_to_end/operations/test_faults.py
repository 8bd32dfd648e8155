"""The brief form of `python -m tests.faults`: each fault against real servers, a few times."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.faults.__main__ import EXPERIMENTS, Experiment, line


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("experiment", "amount"),
    [
        pytest.param(one, amount, id=f"{one.name}-{amount}", marks=[*timed, *marks])
        for one in EXPERIMENTS
        for timed in ([pytest.mark.alone] if one.is_timed else [],)
        for amount, marks in ((one.brief, []), (one.short, [pytest.mark.proof]))
    ],
)
def test_no_fault_loses_repeats_or_corrupts_a_row(
    experiment: Experiment, amount: int, tmp_path: Path
) -> None:
    """And each of them hit what was serving, or it would have shown nothing."""
    if experiment.needs_root and (os.geteuid() != 0 or shutil.which("tc") is None):
        pytest.skip("needs root, and tc of iproute2")

    report = experiment.inject(tmp_path, amount, 1)

    assert not report.failures, line(report)
