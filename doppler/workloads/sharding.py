"""Cutting a tensor program into shard kernels, reductions and re-assemblies.

Each label of a statement is cut into equal parts; every combination of parts is one shard kernel. A
cut label that the output lacks leaves partial results, which one reduction per output tile
combines. Where a consumer needs another tile than was produced, one assembly op slices and joins
exactly that tile, and all kernels that need it share it. Inputs are present everywhere before time
0, so every tile of an input that a kernel needs is an input tile of its own.

Source: the scheme is that of EinDecomp (Bourgeois et al., 2024), which DOPPLER's graphs come from.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from doppler.errors import ConfigurationError
from doppler.workloads.kernels import Kernel
from doppler.workloads.program import Statement, TensorProgram

Region = tuple[tuple[int, int], ...]
"""Half-open (start, stop) range per axis of a value."""

Operand = tuple[str, int]
"""("op", op_id) or ("input", input_tile_id)."""


@dataclass(frozen=True)
class PartitionPlan:
    """Into how many equal parts each label is cut; labels that are not named stay whole.

    Args:
        parts: for every statement.
        overrides: for single statements, by name; they replace `parts` label by label.
    """

    parts: Mapping[str, int]
    overrides: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, statement: str, label: str) -> int:
        """Parts of a label in a statement."""
        return self.overrides.get(statement, {}).get(label, self.parts.get(label, 1))


def deal_parts(num_shards: int, labels: str) -> dict[str, int]:
    """Deals the prime factors of `num_shards`, largest first, to the labels in turn.

    For example 16 over "ikj" gives i 4, k 2, j 2.
    """
    parts = dict.fromkeys(labels, 1)
    factors: list[int] = []
    rest, divisor = num_shards, 2
    while rest > 1:
        while rest % divisor == 0:
            factors.append(divisor)
            rest //= divisor
        divisor += 1
    for factor, label in zip(reversed(factors), itertools.cycle(labels)):
        parts[label] *= factor
    return parts


@dataclass(frozen=True)
class InputTile:
    """A piece of an input, present on every device before time 0.

    Args:
        name: input and ranges, for example "x[0:256,512:1024]".
        shape: of the tile.
        input: name of the input in the program.
        region: where the tile lies in the input.
    """

    name: str
    shape: tuple[int, ...]
    input: str
    region: Region


@dataclass
class ShardedProgram:
    """What `shard` makes of a program; lists run over op ids, which are in topological order.

    Args:
        kernels, operands, roles, meta_op, names: one entry per op.
        input_tiles: in order of first use.
        tiles: op of each region, for every statement's value.
    """

    kernels: list[Kernel] = field(default_factory=list)
    operands: list[tuple[Operand, ...]] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    meta_op: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    input_tiles: list[InputTile] = field(default_factory=list)
    tiles: dict[str, dict[Region, int]] = field(default_factory=dict)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """(producer, consumer) pairs, each once."""
        return [
            (producer, consumer)
            for consumer, operands in enumerate(self.operands)
            for producer in sorted({index for source, index in operands if source == "op"})
        ]

    def add(
        self, kernel: Kernel, operands: tuple[Operand, ...], role: str, meta_op: int, name: str
    ) -> int:
        """Appends an op and returns its id."""
        self.kernels.append(kernel)
        self.operands.append(operands)
        self.roles.append(role)
        self.meta_op.append(meta_op)
        self.names.append(name)
        return len(self.kernels) - 1


def shard(program: TensorProgram, plan: PartitionPlan, dtype: str = "float32") -> ShardedProgram:
    """Cuts a program as the plan says.

    Raises:
        ConfigurationError: naming statement and label, where a size is not divisible by its parts
            or a label is cut that a kernel needs whole; or naming what the plan cuts and the
            program does not have.
    """
    names = {statement.name for statement in program.statements}
    for statement in plan.overrides:
        if statement not in names:
            raise ConfigurationError(
                f"program {program.name!r}: the plan cuts a statement {statement!r} that is not in "
                "it"
            )
    for parts in (plan.parts, *plan.overrides.values()):
        for label in parts:
            if label not in program.sizes:
                raise ConfigurationError(
                    f"program {program.name!r}: the plan cuts a label {label!r} that is not in it"
                )
    return _Sharder(program, plan, dtype).run()


class _Sharder:
    """Builds a `ShardedProgram` statement by statement."""

    def __init__(self, program: TensorProgram, plan: PartitionPlan, dtype: str) -> None:
        self.program = program
        self.plan = plan
        self.dtype = dtype
        self.result = ShardedProgram()
        self.meta_ids = {statement.name: i for i, statement in enumerate(program.statements)}
        self.input_ids: dict[tuple[str, Region], int] = {}
        self.assembled: dict[tuple[str, Region], int] = {}

    def run(self) -> ShardedProgram:
        for statement in self.program.statements:
            if statement.kind == "select":
                self._select(statement)
            else:
                self._cut(statement)
        return self.result

    def _cut(self, statement: Statement) -> None:
        """Adds a statement's shard kernels and, where they leave partial results, reductions."""
        output = statement.output_labels
        partials: dict[Region, list[int]] = {}
        for bounds, index in self._parts(statement, output + statement.reduced_labels):
            regions = [tuple(bounds[x] for x in labels) for labels in statement.operand_labels]
            region = tuple(bounds[label] for label in output)
            operands = tuple(
                self._fetch(name, need) for name, need in zip(statement.operands, regions)
            )
            kernel = self._kernel(
                statement.kind,
                statement.function,
                statement.spec,
                tuple(_shape(need) for need in regions),
                _shape(region),
                statement.options,
            )
            op = self.result.add(
                kernel, operands, "shard", self.meta_ids[statement.name], statement.name + index
            )
            partials.setdefault(region, []).append(op)
        self.result.tiles[statement.name] = {
            region: ops[0] if len(ops) == 1 else self._reduce(statement, region, ops)
            for region, ops in partials.items()
        }

    def _reduce(self, statement: Statement, region: Region, partials: list[int]) -> int:
        shape = _shape(region)
        kernel = self._kernel(
            "reduction", statement.combine, "", (shape,) * len(partials), shape, ()
        )
        return self.result.add(
            kernel,
            tuple(("op", op) for op in partials),
            "reduction",
            self.meta_ids[statement.name],
            f"{statement.name}.{statement.combine}{_ranges(region)}",
        )

    def _select(self, statement: Statement) -> None:
        """A select's shard kernels are themselves gathers from whatever tiles hold the slice."""
        (name,) = statement.operands
        tiles: dict[Region, int] = {}
        for bounds, index in self._parts(statement, statement.output_labels):
            region = tuple(bounds[label] for label in statement.output_labels)
            needed = self.program.select_region(statement, region)
            tiles[region] = self._gather(name, needed, statement, statement.name + index)
        self.result.tiles[statement.name] = tiles

    def _fetch(self, name: str, region: Region) -> Operand:
        """The input tile or op that holds exactly this region, made where there is none."""
        if name not in self.result.tiles:
            return ("input", self._input_tile(name, region))
        if (op := self.result.tiles[name].get(region)) is not None:
            return ("op", op)
        if (name, region) not in self.assembled:
            self.assembled[name, region] = self._gather(
                name, region, None, f"{name}.assembly{_ranges(region)}"
            )
        return ("op", self.assembled[name, region])

    def _input_tile(self, name: str, region: Region) -> int:
        key = (name, region)
        if key not in self.input_ids:
            self.input_ids[key] = len(self.result.input_tiles)
            self.result.input_tiles.append(
                InputTile(name + _ranges(region), _shape(region), name, region)
            )
        return self.input_ids[key]

    def _gather(self, name: str, region: Region, select: Statement | None, label: str) -> int:
        """Adds an op that copies a region together from the tiles that overlap it."""
        operands: list[Operand] = []
        pieces = []
        if name in self.result.tiles:
            for tile, op in self.result.tiles[name].items():
                if (piece := _overlap(region, tile)) is not None:
                    operands.append(("op", op))
                    pieces.append(piece)
        else:
            operands.append(("input", self._input_tile(name, region)))
            whole = tuple((0, size) for size in _shape(region))
            pieces.append((whole, whole))
        shape = _shape(region)
        kernel = self._kernel(
            "select" if select else "assembly",
            "gather",
            "",
            tuple(self._operand_shape(operand) for operand in operands),
            shape,
            (("shape", shape), ("pieces", tuple(pieces))),
        )
        role = "shard" if select else "assembly"
        meta_op = self.meta_ids[select.name if select else name]
        return self.result.add(kernel, tuple(operands), role, meta_op, label)

    def _operand_shape(self, operand: Operand) -> tuple[int, ...]:
        source, index = operand
        if source == "op":
            return self.result.kernels[index].output_shape
        return self.result.input_tiles[index].shape

    def _kernel(
        self,
        kind: str,
        function: str,
        spec: str,
        operand_shapes: tuple[tuple[int, ...], ...],
        output_shape: tuple[int, ...],
        options: tuple[tuple[str, Any], ...],
    ) -> Kernel:
        return Kernel(kind, function, spec, operand_shapes, output_shape, options, self.dtype)

    def _parts(
        self, statement: Statement, labels: str
    ) -> Iterator[tuple[dict[str, tuple[int, int]], str]]:
        """Range of every label and a name suffix, for each shard; the last label turns fastest."""
        where = f"program {self.program.name!r}, statement {statement.name!r}"
        counts = {}
        for label in labels:
            parts, size = self.plan.of(statement.name, label), self.program.sizes[label]
            if parts > 1 and label in statement.whole:
                raise ConfigurationError(
                    f"{where}: label {label!r} is cut into {parts}, but {statement.function} needs "
                    "it whole"
                )
            if parts < 1 or size % parts:
                raise ConfigurationError(
                    f"{where}: label {label!r} of size {size} cannot be cut into {parts} equal "
                    "parts; change num_shards or the size"
                )
            counts[label] = parts
        for chosen in itertools.product(*(range(parts) for parts in counts.values())):
            bounds = {}
            for (label, parts), i in zip(counts.items(), chosen):
                step = self.program.sizes[label] // parts
                bounds[label] = (i * step, (i + 1) * step)
            cut = [f"{x}{i}" for (x, parts), i in zip(counts.items(), chosen) if parts > 1]
            yield bounds, f"[{','.join(cut)}]" if cut else ""


def _shape(region: Region) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in region)


def _ranges(region: Region) -> str:
    return f"[{','.join(f'{start}:{stop}' for start, stop in region)}]"


def _overlap(region: Region, tile: Region) -> tuple[Region, Region] | None:
    """Where a tile overlaps a region, in the region's and in the tile's own coordinates."""
    common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(region, tile)]
    if any(start >= stop for start, stop in common):
        return None
    target = tuple((a - r, b - r) for (a, b), (r, _) in zip(common, region))
    source = tuple((a - t, b - t) for (a, b), (t, _) in zip(common, tile))
    return target, source
