"""Making a program's inputs, cutting them into tiles and putting tiles together again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from doppler.errors import ConfigurationError, ExecutionError
from doppler.workloads.program import Input, TensorProgram
from doppler.workloads.sharding import InputTile, Region

if TYPE_CHECKING:
    import torch

MASKED = -1e9
"""What a causal mask adds to a score that must not count; finite, so that differences stay so."""


def draw_inputs(program: TensorProgram, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """Draws every input of a program, in its order, from one seeded generator."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        declared.name: _fill(declared, program.shape(declared.labels), dtype, generator)
        for declared in program.inputs
    }


def _fill(
    declared: Input, shape: tuple[int, ...], dtype: str, generator: torch.Generator
) -> torch.Tensor:
    import torch

    options = dict(declared.options)
    torch_dtype = getattr(torch, dtype)
    match declared.fill:
        case "normal":
            drawn = torch.randn(shape, generator=generator, dtype=torch_dtype)
            return drawn.mul_(options.get("std", 1.0)).add_(options.get("mean", 0.0))
        case "rotary_cos" | "rotary_sin":
            positions, half = shape
            rates = options["base"] ** (-torch.arange(half, dtype=torch.float64) / half)
            angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
            table = angles.cos() if declared.fill == "rotary_cos" else angles.sin()
            return table.to(torch_dtype)
        case "causal":
            return torch.full(shape, MASKED, dtype=torch_dtype).triu_(1)
    raise ConfigurationError(
        f"input {declared.name!r}: no fill {declared.fill!r}; the fills are normal, rotary_cos, "
        "rotary_sin, causal"
    )


def cut_tiles(values: Mapping[str, torch.Tensor], tiles: Sequence[InputTile]) -> list[torch.Tensor]:
    """One contiguous tensor of its own per tile."""
    return [_view(values[tile.input], tile.region).clone().contiguous() for tile in tiles]


def join_tiles(
    shape: tuple[int, ...], tiles: Iterable[tuple[Region, torch.Tensor]], name: str
) -> torch.Tensor:
    """Puts tiles together to the whole tensor.

    Args:
        shape: of the whole.
        tiles: region and tensor of each tile; together they cover the whole.
        name: of the whole, for messages.

    Raises:
        ExecutionError: if a tile has another shape than its region.
    """
    import torch

    whole: torch.Tensor | None = None
    for region, tile in tiles:
        if whole is None:
            whole = torch.empty(shape, dtype=tile.dtype, device=tile.device)
        part = _view(whole, region)
        if part.shape != tile.shape:
            raise ExecutionError(
                f"{name}: a tile has shape {tuple(tile.shape)}, its place has {tuple(part.shape)}"
            )
        part.copy_(tile)
    if whole is None:
        raise ExecutionError(f"{name}: no tiles")
    return whole


def _view(tensor: torch.Tensor, region: Region) -> torch.Tensor:
    return tensor[tuple(slice(start, stop) for start, stop in region)]
