"""Devices, links and what ops and transfers cost on them."""

from doppler.hardware.cost_model import CostModel, roofline_cost_model
from doppler.hardware.topology import Device, Link, Topology, fully_connected, make_topology

__all__ = [
    "CostModel",
    "Device",
    "Link",
    "Topology",
    "fully_connected",
    "make_topology",
    "roofline_cost_model",
]
