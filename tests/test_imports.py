"""The direction of imports and the weight of `import doppler`."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = [
    "errors",
    "files",
    "graph",
    "hardware",
    "problem",
    "schedule",
    "workloads",
    "simulator",
    "executor",
    "construction",
    "schedulers",
    "policies",
    "training",
    "viz",
]
TORCH_LAYERS = {"executor", "policies", "training", "workloads"}
NUMBA_LAYERS = {"simulator", "construction", "schedulers"}
LAZY = {"wandb", "matplotlib", "ortools", "transformers", "simpy", "pandas"}


def imported_modules(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names.add(statement.module)
            names.update(f"{statement.module}.{alias.name}" for alias in statement.names)
    return names


def top_level_modules(tree: ast.Module) -> set[str]:
    body = [s for s in tree.body if isinstance(s, ast.Import | ast.ImportFrom)]
    return imported_modules(ast.Module(body=body, type_ignores=[]))


def library_files() -> list[Path]:
    return sorted(p for p in (ROOT / "doppler").rglob("*.py") if p.parent != ROOT / "doppler")


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_package_imports_only_from_those_above_it(path: Path) -> None:
    layer = path.relative_to(ROOT / "doppler").parts[0]
    assert layer in LAYERS, f"{layer} has no place in the order of packages"
    tree = ast.parse(path.read_text())
    for name in imported_modules(tree):
        parts = name.split(".")
        assert parts[0] not in {"envs", "scripts", "hydra", "omegaconf", "gymnasium"}, name
        if parts[0] == "doppler" and len(parts) > 1 and parts[1] in LAYERS:
            assert LAYERS.index(parts[1]) <= LAYERS.index(layer), f"{layer} imports {name}"
        if parts[0] in {"torch", "torch_geometric"}:
            assert layer in TORCH_LAYERS, f"{layer} imports {name}"
        if parts[0] == "numba":
            assert layer in NUMBA_LAYERS, f"{layer} imports {name}"


@pytest.mark.parametrize("path", library_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_heavy_packages_are_imported_where_they_are_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    found = {name.split(".")[0] for name in top_level_modules(tree)} & LAZY
    assert not found, f"{found} imported at the top of {path.name}"


def test_envs_do_not_import_scripts() -> None:
    for path in (ROOT / "envs").rglob("*.py"):
        names = {name.split(".")[0] for name in imported_modules(ast.parse(path.read_text()))}
        assert not names & {"scripts", "hydra", "omegaconf"}, path


def test_import_doppler_is_light() -> None:
    heavy = "{'torch', 'numba', 'matplotlib', 'wandb', 'gymnasium', 'hydra', 'torch_geometric'}"
    code = f"import sys, doppler; print(sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
