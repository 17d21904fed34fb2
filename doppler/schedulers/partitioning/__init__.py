"""Schedulers that cut the graph into one part per device: balanced work, little communication."""

from __future__ import annotations

from doppler.schedulers.partitioning.chain_split import ChainSplit
from doppler.schedulers.partitioning.metis import Metis

__all__ = ["ChainSplit", "Metis"]
