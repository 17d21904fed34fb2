"""Placement policies: features, graph encoder, SEL and PLC heads, and what they are compared with.

DOPPLER's policy is `DualPolicy`. The comparators are built on the same features and are trained by
the same stages: `SelOnlyPolicy` and `PlcOnlyPolicy` (the paper's ablation), `JointPolicy` (one
policy over pairs), `PlacetoPolicy` and `GdpPolicy`.
"""

from doppler.policies.base import Policy, PolicyTables, Shape, policy_from_document
from doppler.policies.dual_policy import PAPER_POLICY, DualPolicy, PolicyConfig, sel_logits
from doppler.policies.features import ProblemFeatures
from doppler.policies.gdp import GdpConfig, GdpPolicy
from doppler.policies.joint import JointConfig, JointPolicy
from doppler.policies.placeto import PlacetoConfig, PlacetoPolicy
from doppler.policies.rules import PlcOnlyConfig, PlcOnlyPolicy, SelOnlyConfig, SelOnlyPolicy

__all__ = [
    "PAPER_POLICY",
    "DualPolicy",
    "GdpConfig",
    "GdpPolicy",
    "JointConfig",
    "JointPolicy",
    "PlacetoConfig",
    "PlacetoPolicy",
    "PlcOnlyConfig",
    "PlcOnlyPolicy",
    "Policy",
    "PolicyConfig",
    "PolicyTables",
    "ProblemFeatures",
    "SelOnlyConfig",
    "SelOnlyPolicy",
    "Shape",
    "policy_from_document",
    "sel_logits",
]
