"""The partial placement that grows op by op: candidates, earliest starts, device features."""

from doppler.construction.construction import Construction

__all__ = ["Construction"]
