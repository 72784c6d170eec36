# cython: language_level=3
"""Frames that wait in the native plane for their time, and the heap of the flows in which any do.

It is the part of the session's outbox (`session/outbox.py`) that needs no Python: whole frames that go on as they came,
one behind the other.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from natsproxy.net._flow cimport READ, Flow, Held
from natsproxy.wire._line cimport OPS_ROOM

cdef enum:
    OVERHEAD = 400              # bytes that an item takes beside its data: as in `outbox.py`, a test compares the two


cdef inline unsigned char *cause_of(Held *item) noexcept nogil:
    return <unsigned char *>(item + 1)


cdef inline unsigned char *bytes_of(Held *item) noexcept nogil:
    return cause_of(item) + item.cause_size


# -- the items of a flow

cdef inline bint hold_back(
    Flow *flow, const unsigned char *p, Py_ssize_t size, Py_ssize_t frames, uint32_t ops, const Py_ssize_t *counted,
    uint64_t first, int64_t t, int64_t due, const unsigned char *cause, Py_ssize_t cause_size
) noexcept nogil:
    """Let whole frames wait behind the others of a flow; False without memory.

    They join the last item where they are its neighbours, and alike.
    """
    cdef Held *last = flow.last_held
    cdef Held *item
    cdef Py_ssize_t room
    cdef int op
    if last != NULL and (
        last.due == due and last.t == t and last.first + last.frames == first and last.cause_size == cause_size
        and last.size + size <= READ and memcmp(cause_of(last), cause, cause_size) == 0
    ):
        item = last
        if item.size + size > item.room:
            room = 2 * (item.size + size)
            item = <Held *>realloc(last, sizeof(Held) + cause_size + room)
            if item == NULL:
                return False
            item.room = room
            flow.last_held = item  # it may have moved
            if item.before == NULL:
                flow.held = item
            else:
                item.before.next = item
    else:
        item = <Held *>malloc(sizeof(Held) + cause_size + size)
        if item == NULL:
            return False
        memset(item, 0, sizeof(Held))
        item.due, item.t, item.first, item.room, item.cause_size = due, t, first, size, cause_size
        memcpy(cause_of(item), cause, cause_size)
        if last == NULL:
            flow.held = item
        else:
            last.next, item.before = item, last
        flow.last_held = item
        flow.held_bytes += OVERHEAD
    memcpy(bytes_of(item) + item.size, p, size)
    item.size += size
    item.frames += frames
    item.ops |= ops
    for op in range(OPS_ROOM):
        if ops >> op & 1:
            item.counted[op] += counted[op]
    flow.held_bytes += size
    flow.held_frames += frames
    return True


cdef inline void drop_first(Flow *flow) noexcept nogil:
    """Remove the first item."""
    cdef Held *item = flow.held
    flow.held = item.next
    if flow.held == NULL:
        flow.last_held = NULL
    else:
        flow.held.before = NULL
    flow.held_bytes -= item.size + OVERHEAD
    flow.held_frames -= item.frames
    free(item)


# -- the heap: the flow with the earliest item stands first

cdef struct Waiting:
    Flow **flows
    Py_ssize_t count
    Py_ssize_t room


cdef inline bint make_room(Waiting *waiting, Py_ssize_t flows) noexcept nogil:
    """Make room for so many flows; False without memory."""
    cdef Flow **grown
    if flows <= waiting.room:
        return True
    grown = <Flow **>realloc(waiting.flows, 2 * flows * sizeof(Flow *))
    if grown == NULL:
        return False
    waiting.flows, waiting.room = grown, 2 * flows
    return True


cdef inline void _set(Waiting *waiting, Py_ssize_t at, Flow *flow) noexcept nogil:
    waiting.flows[at] = flow
    flow.due_place = at + 1


cdef inline void _settle(Waiting *waiting, Py_ssize_t at, Flow *flow) noexcept nogil:
    """Put a flow in its place, from `at` on, where nothing stands."""
    cdef Py_ssize_t other
    while at and waiting.flows[(at - 1) // 2].held.due > flow.held.due:
        _set(waiting, at, waiting.flows[(at - 1) // 2])
        at = (at - 1) // 2
    while True:
        other = 2 * at + 1
        if other + 1 < waiting.count and waiting.flows[other + 1].held.due < waiting.flows[other].held.due:
            other += 1
        if other >= waiting.count or waiting.flows[other].held.due >= flow.held.due:
            break
        _set(waiting, at, waiting.flows[other])
        at = other
    _set(waiting, at, flow)


cdef inline void end_wait(Waiting *waiting, Flow *flow) noexcept nogil:
    """Take a flow out."""
    cdef Py_ssize_t at = flow.due_place - 1
    cdef Flow *last
    if at < 0:
        return
    flow.due_place = 0
    waiting.count -= 1
    last = waiting.flows[waiting.count]
    if last != flow:
        _settle(waiting, at, last)


cdef inline void await_due(Waiting *waiting, Flow *flow) noexcept nogil:
    """Put in a flow that holds something."""
    end_wait(waiting, flow)
    waiting.count += 1
    _settle(waiting, waiting.count - 1, flow)
