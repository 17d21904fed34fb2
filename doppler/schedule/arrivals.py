"""When each op and each hop of a schedule could have started, and what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Arrivals:
    """What reached whom when, read off a schedule whose transfers are complete.

    Args:
        hop_before: the hop of the same transfer before each hop, -1 at the first. # (num_hops,)
        hop_eligible: when each hop could start: the finish of the hop before it, or of the op whose
            output it moves. # (num_hops,) [s]
        edge_hop: the last hop of the transfer that serves each edge of `graph.edges`, -1 where
            producer and consumer share a device. # (num_edges,)
        edge_arrival: when the producer's output was on the consumer's device. # (num_edges,) [s]
        op_eligible: when the last input of each op was there, 0 without any. # (num_ops,) [s]
    """

    hop_before: np.ndarray
    hop_eligible: np.ndarray
    edge_hop: np.ndarray
    edge_arrival: np.ndarray
    op_eligible: np.ndarray


def find_arrivals(schedule: Schedule) -> Arrivals:
    """Reads the arrivals off a schedule; hops of one transfer are taken in the order of listing."""
    problem = schedule.problem
    num_devices = problem.num_devices
    codes = schedule.transfer_ops * num_devices + schedule.transfer_targets
    order = np.argsort(codes, kind="stable")
    hop_before = np.full(len(codes), -1, np.int64)
    follows = np.flatnonzero(codes[order][1:] == codes[order][:-1])
    hop_before[order[follows + 1]] = order[follows]
    later = hop_before >= 0
    hop_eligible = schedule.finish[schedule.transfer_ops].copy()
    hop_eligible[later] = schedule.transfer_finish[hop_before[later]]

    producers, consumers = problem.graph.edges.T
    targets = schedule.devices[consumers]
    remote = schedule.devices[producers] != targets
    needed = (producers * num_devices + targets)[remote]
    edge_hop = np.full(len(producers), -1, np.int64)
    edge_hop[remote] = order[np.searchsorted(codes[order], needed, "right") - 1]
    edge_arrival = schedule.finish[producers].copy()
    edge_arrival[remote] = schedule.transfer_finish[edge_hop[remote]]
    op_eligible = np.zeros(problem.num_ops)
    np.maximum.at(op_eligible, consumers, edge_arrival)
    return Arrivals(hop_before, hop_eligible, edge_hop, edge_arrival, op_eligible)
