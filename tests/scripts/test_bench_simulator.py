"""The speed table: every row is there, on published graphs and on workloads of our own."""

from __future__ import annotations

import re

import numpy as np
import pytest

from scripts import bench_simulator
from scripts.bench_simulator import Row, main


def test_a_row_says_whether_its_target_was_met():
    values = np.array([4.0, 2.0, 3.0, 1.0, 5.0])
    measured = "3 us [2, 4]"
    assert Row("call", values, "us", 6).cells() == ["call", measured, "<= 6 us", "2.00", "yes"]
    assert Row("call", values, "us", 1.5).cells()[3:] == ["0.50", "no"]
    assert Row("rate", values, "us", 6, False).cells()[2:] == [">= 6 us", "0.50", "no"]
    assert Row("rate", values, "us", 1.5, False).cells()[3:] == ["2.00", "yes"]
    assert Row("moves", values, "us").cells() == ["moves", measured, "", "", ""]


@pytest.mark.parametrize("published", [True, False])
def test_the_table(monkeypatch, tmp_path, capsys, request, published):
    if published:
        request.getfixturevalue("shared_data")
    else:
        monkeypatch.setattr(bench_simulator, "PUBLISHED", tmp_path / "absent")
    monkeypatch.setattr(bench_simulator, "BATCH", 16)
    monkeypatch.setattr(bench_simulator, "CALLS", 4)
    output = tmp_path / "table.md"
    rows = main(["--repeats", "1", "--big-ops", "10000", "--output", str(output)])
    names = [row.what for row in rows]
    assert len(set(names)) == len(rows) == 3 * 11 + 7
    assert all(np.isfinite(row.values).all() and (row.values > 0).all() for row in rows)
    targets = [row.target for row in rows if row.target is not None]
    assert sorted(set(targets)) == [1, 1.5, 1.7, 2, 3, 8, 15, 18, 80, 200]
    text = output.read_text()
    assert text.count("\n| ") == len(rows) + 1
    assert ("published graphs" if published else "own workloads") in text
    assert re.search(r"load average .*, \d{4}-\d\d-\d\d, Python 3\.", text)
    assert "target" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--big-ops", "10"]])
def test_impossible_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "must be 1 or more" in capsys.readouterr().err


def test_the_random_dag_has_what_it_says():
    problem = bench_simulator.random_dag(1000, 2000, 8)
    assert (problem.num_ops, problem.graph.num_edges, problem.num_devices) == (1000, 2000, 8)
    assert problem.graph.edges[:, 0].max() < 1000
