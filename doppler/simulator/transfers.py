"""The kernel's part for transfers that queue for links and for resident memory."""

from __future__ import annotations

import numpy as np

from doppler.simulator.heaps import heap_pop, heap_push
from doppler.simulator.jit import compiled, inlined
from doppler.simulator.tables import Scratch, Tables, TransferScratch


@compiled
def number_transfers(tables: Tables, devices: np.ndarray, w: Scratch, x: TransferScratch) -> None:
    """Finds the transfers of a placement, their consumers, hops and priorities.

    Numbers ascend by (op, destination device), so that comparing numbers breaks ties as it should.
    """
    fifo = len(w.key) == 0
    num_devices = len(tables.slots)
    x.seen[:] = -1
    x.link_size[:] = 0
    x.channel_busy[:] = False
    x.is_dirty[:] = False
    x.link_base[:] = 0
    count = 0
    hops = 0
    for op in range(len(devices)):
        device = devices[op]
        first = count
        x.first[op] = first
        for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
            target = devices[tables.succ_ops[edge]]
            if target != device and x.seen[target] != op:
                x.seen[target] = op
                place = count
                while place > first and x.target[place - 1] > target:
                    x.target[place] = x.target[place - 1]
                    place -= 1
                x.target[place] = target
                count += 1
        for transfer in range(first, count):
            target = x.target[transfer]
            x.slot_of[target] = transfer
            x.op[transfer] = op
            x.key[transfer] = np.inf
            x.consumers[transfer] = -1
            x.hop[transfer] = 0
            x.hop_base[transfer] = hops
            route = device * num_devices + target
            for step in range(tables.route_ptr[route], tables.route_ptr[route + 1]):
                x.hop_link[hops] = tables.route_links[step]
                x.link_base[tables.route_links[step] + 1] += 1
                hops += 1
        if count > first:
            for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
                consumer = tables.succ_ops[edge]
                target = devices[consumer]
                if target != device:
                    transfer = x.slot_of[target]
                    x.next_edge[edge] = x.consumers[transfer]
                    x.consumers[transfer] = edge
                    if not fifo:
                        x.key[transfer] = min(x.key[transfer], w.key[consumer])
    x.first[len(devices)] = count
    x.hop_base[count] = hops
    x.counts[:] = 0
    x.counts[0] = count
    for link in range(len(x.link_size)):
        x.link_base[link + 1] += x.link_base[link]


@inlined
def mark_dirty(x: TransferScratch, link: int) -> None:
    """Notes that a hop may be able to start on the link in this round."""
    if not x.is_dirty[link]:
        x.is_dirty[link] = True
        x.dirty[x.counts[2]] = link
        x.counts[2] += 1


@inlined
def queue_hop(x: TransferScratch, transfer: int, time: float, fifo: bool) -> None:
    """Lets a transfer wait for the link of its current hop, eligible from `time`."""
    link = x.hop_link[x.hop_base[transfer] + x.hop[transfer]]
    key = time if fifo else x.key[transfer]
    heap_push(x.link_key, x.link_transfer, x.link_base[link], x.link_size[link], key, transfer)
    x.link_size[link] += 1
    mark_dirty(x, link)


@inlined
def channels_free(tables: Tables, x: TransferScratch, link: int) -> bool:
    """Whether nothing occupies what the link needs."""
    for entry in range(tables.channel_ptr[link], tables.channel_ptr[link + 1]):
        if x.channel_busy[tables.channels[entry]]:
            return False
    return True


@inlined
def start_hops(
    tables: Tables, transfer_factor: np.ndarray, memory: bool, time: float, x: TransferScratch
) -> None:
    """Starts what can start, most urgent first, among the links that changed in this round.

    Starting a hop only takes channels away, so that one pass over the heads in order of urgency
    equals choosing the best startable head again and again.
    """
    waiting = 0
    for entry in range(x.counts[2]):
        link = x.dirty[entry]
        x.is_dirty[link] = False
        if x.link_size[link] and channels_free(tables, x, link):
            head = x.link_base[link]
            heap_push(
                x.candidate_key, x.candidate, 0, waiting, x.link_key[head], x.link_transfer[head]
            )
            waiting += 1
    x.counts[2] = 0
    while waiting:
        transfer = heap_pop(x.candidate_key, x.candidate, 0, waiting)
        waiting -= 1
        hop = x.hop_base[transfer] + x.hop[transfer]
        link = x.hop_link[hop]
        if not channels_free(tables, x, link):
            continue
        head = x.link_base[link]
        heap_pop(x.link_key, x.link_transfer, head, x.link_size[link])
        x.link_size[link] -= 1
        for entry in range(tables.channel_ptr[link], tables.channel_ptr[link + 1]):
            x.channel_busy[tables.channels[entry]] = True
        op = x.op[transfer]
        target = x.target[transfer]
        volume = tables.transfer_volume[op]
        seconds = tables.link_latency[link] + volume * tables.link_rate[link]
        if len(transfer_factor):
            seconds *= transfer_factor[op, target]
        x.hop_start[hop] = time
        x.hop_finish[hop] = time + seconds
        heap_push(x.flight_key, x.flight_transfer, 0, x.counts[1], time + seconds, transfer)
        x.counts[1] += 1
        if memory and hop + 1 == x.hop_base[transfer + 1]:
            x.resident[target] += tables.output_bytes[op]
            x.copy_live[transfer] = True
        if x.link_size[link] and tables.channel_ptr[link + 1] == tables.channel_ptr[link]:
            heap_push(
                x.candidate_key, x.candidate, 0, waiting, x.link_key[head], x.link_transfer[head]
            )
            waiting += 1


@inlined
def arrive(tables: Tables, devices: np.ndarray, w: Scratch, edge: int, time: float) -> None:
    """Counts one input of a consumer as resident; queues the consumer if it was the last."""
    consumer = tables.succ_ops[edge]
    w.missing[consumer] -= 1
    if w.missing[consumer] == 0:
        device = devices[consumer]
        key = w.key[consumer] if len(w.key) else time
        size = w.queue_size[device]
        heap_push(w.queue_key, w.queue_op, w.queue_base[device], size, key, consumer)
        w.queue_size[device] = size + 1


@inlined
def finish_hop(
    tables: Tables,
    devices: np.ndarray,
    memory: bool,
    time: float,
    w: Scratch,
    x: TransferScratch,
) -> None:
    """Takes in the hop that finishes first: frees its channels, then goes on or arrives."""
    transfer = heap_pop(x.flight_key, x.flight_transfer, 0, x.counts[1])
    x.counts[1] -= 1
    hop = x.hop_base[transfer] + x.hop[transfer]
    link = x.hop_link[hop]
    for entry in range(tables.channel_ptr[link], tables.channel_ptr[link + 1]):
        channel = tables.channels[entry]
        x.channel_busy[channel] = False
        for other in range(tables.sharing_ptr[channel], tables.sharing_ptr[channel + 1]):
            mark_dirty(x, tables.sharing[other])
    if hop + 1 < x.hop_base[transfer + 1]:
        x.hop[transfer] += 1
        queue_hop(x, transfer, time, len(w.key) == 0)
        return
    edge = x.consumers[transfer]
    while edge >= 0:
        arrive(tables, devices, w, edge, time)
        edge = x.next_edge[edge]
    if memory:
        release_home(tables, devices, x, x.op[transfer])


@compiled
def reset_memory(tables: Tables, devices: np.ndarray, x: TransferScratch) -> None:
    """Counts how often each resident tensor will be used before it can be freed.

    At home a tensor serves its consumers there and its outgoing transfers; final outputs serve
    nobody and so are never freed.
    """
    x.resident[:] = 0.0
    x.peak[:] = 0.0
    x.home_live[:] = False
    for op in range(len(devices)):
        x.home_uses[op] = x.first[op + 1] - x.first[op]
        for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
            if devices[tables.succ_ops[edge]] == devices[op]:
                x.home_uses[op] += 1
        for transfer in range(x.first[op], x.first[op + 1]):
            x.copy_live[transfer] = False
            x.copy_uses[transfer] = 0
            edge = x.consumers[transfer]
            while edge >= 0:
                x.copy_uses[transfer] += 1
                edge = x.next_edge[edge]


@inlined
def allocate_output(tables: Tables, x: TransferScratch, op: int, device: int) -> None:
    """An op that starts has its output allocated."""
    x.resident[device] += tables.output_bytes[op]
    x.home_live[op] = True


@inlined
def deliver_inputs(
    tables: Tables, devices: np.ndarray, memory: bool, w: Scratch, x: TransferScratch
) -> None:
    """Inputs are there at time 0: consumers on their device have them, transfers may start."""
    for i in range(len(tables.input_ops)):
        op = tables.input_ops[i]
        w.start[op] = 0.0
        w.finish[op] = 0.0
        if memory:
            allocate_output(tables, x, op, devices[op])
        for edge in range(tables.succ_ptr[op], tables.succ_ptr[op + 1]):
            if devices[tables.succ_ops[edge]] == devices[op]:
                arrive(tables, devices, w, edge, 0.0)
        for transfer in range(x.first[op], x.first[op + 1]):
            queue_hop(x, transfer, 0.0, len(w.key) == 0)


@inlined
def release_home(tables: Tables, devices: np.ndarray, x: TransferScratch, op: int) -> None:
    """One consumer or transfer less needs the output of `op` on its own device."""
    x.home_uses[op] -= 1
    if x.home_uses[op] == 0:
        x.resident[devices[op]] -= tables.output_bytes[op]
        x.home_live[op] = False


@inlined
def release_inputs(
    tables: Tables, devices: np.ndarray, x: TransferScratch, op: int, device: int
) -> None:
    """An op that finished needs its inputs on its device no longer."""
    for entry in range(tables.pred_ptr[op], tables.pred_ptr[op + 1]):
        producer = tables.pred_ops[entry]
        if devices[producer] == device:
            release_home(tables, devices, x, producer)
            continue
        transfer = x.first[producer]
        while x.target[transfer] != device:
            transfer += 1
        x.copy_uses[transfer] -= 1
        if x.copy_uses[transfer] == 0:
            x.resident[device] -= tables.output_bytes[producer]
            x.copy_live[transfer] = False


@compiled
def over_capacity(tables: Tables, x: TransferScratch) -> bool:
    """Updates the peaks at the end of a round; notes the lowest device that is over capacity."""
    for device in range(len(x.peak)):
        x.peak[device] = max(x.peak[device], x.resident[device])
        if x.resident[device] > tables.capacity[device]:
            x.counts[3] = device
            return True
    return False
