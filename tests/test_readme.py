"""The README's Python snippets run as they stand, and its commands name real files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("index", range(len(SNIPPETS)))
def test_a_snippet_runs(index: int, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(SNIPPETS[index], f"README snippet {index}", "exec"), {})
    assert capsys.readouterr().out


def test_there_are_snippets_and_every_named_script_and_link_exists() -> None:
    assert len(SNIPPETS) == 2
    for script in re.findall(r"python (scripts/\w+\.py)", README):
        assert (ROOT / script).is_file()
    for target in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        assert (ROOT / target).is_file(), target
