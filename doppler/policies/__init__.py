"""Placement policies: features, graph encoder, SEL and PLC heads."""

from doppler.policies.dual_policy import (
    PAPER_POLICY,
    DualPolicy,
    PolicyConfig,
    PolicyTables,
    sel_logits,
)
from doppler.policies.features import ProblemFeatures

__all__ = [
    "PAPER_POLICY",
    "DualPolicy",
    "PolicyConfig",
    "PolicyTables",
    "ProblemFeatures",
    "sel_logits",
]
