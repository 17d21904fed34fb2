"""Everything that `real_rl` knows beyond the policy, so that a checkpoint can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from doppler.errors import CheckpointError
from doppler.policies.torch_files import read_table
from doppler.training.racing import PairedNoise
from doppler.training.recalibration import CostFactors
from doppler.training.regret import Regret
from doppler.training.shadow import Ledger
from doppler.training.stage import is_number

RECENT = 9
"""The incumbent's median is that of so many of its last runs."""


@dataclass
class Counts:
    """Sums over the stage.

    Args:
        executed: placements that were run, the incumbent not counted.
        skipped: placements that were only simulated.
        known: placements that were not run again because they had been.
        replaced: how often the incumbent was.
        idle: updates in a row that executed nothing.
        compared: medians that the simulators' errors are of.
        error: sum of |simulated / measured makespan - 1| of the recalibrated simulator, before it
            learnt of these runs.
        first_error: of the simulator as it was at first.
    """

    executed: int = 0
    skipped: int = 0
    known: int = 0
    replaced: int = 0
    idle: int = 0
    compared: int = 0
    error: float = 0.0
    first_error: float = 0.0


@dataclass(eq=False)
class Measuring:
    """What was learnt by measuring.

    Args:
        incumbent_runs: the incumbent's last runs, at most `RECENT`. # [s]
        noise: of paired log ratios.
        regret: of exploring.
        counts: sums over the stage.
        ledger: placements that were executed.
        factors: on the cost model; None where it is not recalibrated.
    """

    incumbent_runs: list[float] = field(default_factory=list)
    noise: PairedNoise = field(default_factory=PairedNoise)
    regret: Regret = field(default_factory=Regret)
    counts: Counts = field(default_factory=Counts)
    ledger: Ledger = field(default_factory=Ledger)
    factors: CostFactors | None = None

    def report(self) -> dict[str, float]:
        """Metrics of the stage so far; means of nothing are 0."""
        regret, counts = self.regret, self.counts
        return {
            "executions": regret.executions,
            "regret_mean": regret.mean,
            "regret_added": regret.added,
            "regret_explored": regret.explored_mean,
            "regret_incumbent": regret.own_mean,
            "regret_worst": regret.worst,
            "simulation_error": counts.error / max(counts.compared, 1),
            "simulation_error_uncalibrated": counts.first_error / max(counts.compared, 1),
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "incumbent_runs": list(self.incumbent_runs),
            "noise": asdict(self.noise),
            "regret": asdict(self.regret),
            "counts": asdict(self.counts),
            "ledger": self.ledger.state_dict(),
            "factors": None if self.factors is None else asdict(self.factors),
        }

    @classmethod
    def from_state_dict(cls, values: Mapping[str, Any]) -> Measuring:
        factors = values["factors"]
        return cls(
            list(values["incumbent_runs"]),
            PairedNoise(**values["noise"]),
            Regret(**values["regret"]),
            Counts(**values["counts"]),
            Ledger.from_state_dict(values["ledger"]),
            None if factors is None else CostFactors(**factors),
        )


def check_measuring(values: Mapping[str, Any], where: str) -> None:
    """Checks a stored `Measuring`, all but the rows of the ledger's placements.

    Raises:
        CheckpointError: naming the field.
    """
    _check_numbers(values.get("incumbent_runs"), f"{where}.incumbent_runs", least=0.0)
    for label, kind in (("noise", PairedNoise), ("regret", Regret), ("counts", Counts)):
        table, like = read_table(values, label, where), asdict(kind())
        if set(table) != set(like):
            raise CheckpointError(f"{where}.{label}: has not the entries {', '.join(like)}")
        for name, value in table.items():
            whole = not isinstance(like[name], int) or isinstance(value, int)
            if not whole or not is_number(value, least=0.0):
                raise CheckpointError(f"{where}.{label}.{name}: {value!r} is no such number >= 0")
    _check_ledger(read_table(values, "ledger", where), f"{where}.ledger")
    if values.get("factors") is not None:
        table = read_table(values, "factors", where)
        if set(table) != set(asdict(CostFactors.ones(0))):
            raise CheckpointError(f"{where}.factors: has not the entries of cost factors")
        for label in ("ops", "op_runs", "links"):
            _check_numbers(table[label], f"{where}.factors.{label}", least=0.0)
        _check_numbers([table["link_runs"]], f"{where}.factors.link_runs", least=0.0)
        if len(table["ops"]) != len(table["op_runs"]) or len(table["links"]) != 5:
            raise CheckpointError(f"{where}.factors: lists of the wrong lengths")
    elif "factors" not in values:
        raise CheckpointError(f"{where}.factors: is missing")


def _check_ledger(table: Mapping[str, Any], where: str) -> None:
    keys = table.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise CheckpointError(f"{where}.keys: not a list of names")
    for label in ("devices", "orders", "log_ratios", "challenged"):
        rows = table.get(label)
        if not isinstance(rows, list) or len(rows) != len(keys):
            raise CheckpointError(f"{where}.{label}: not a list of {len(keys)} rows")
    for number, row in enumerate(table["log_ratios"]):
        _check_numbers(row, f"{where}.log_ratios[{number}]", infinite=True)
        if not row:
            raise CheckpointError(f"{where}.log_ratios[{number}]: is empty")
    if not all(isinstance(value, bool) for value in table["challenged"]):
        raise CheckpointError(f"{where}.challenged: not all are true or false")


def _check_numbers(values: Any, where: str, infinite: bool = False, **bounds: float) -> None:
    if not isinstance(values, list):
        raise CheckpointError(f"{where}: not a list of numbers")
    for value in values:
        if not (is_number(value, **bounds) or (infinite and value == float("inf"))):
            raise CheckpointError(f"{where}: {value!r} is not a number that can be here")
