# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled meter of requests: several threads use it at once, none of them with the interpreter lock.

`_request_meter_py.py` has the same in Python and is authoritative.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from natsproxy._lock cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from natsproxy.protocol._subjects cimport fits, is_ascii
from natsproxy.protocol._template cimport write_template
from natsproxy.wire._meter cimport Meter, NativeMeter
from natsproxy.wire._table cimport Entry, Table, table_clear, table_find, table_put, table_remove

from natsproxy.protocol import _request_meter_py as pure

cdef enum:
    ROOM = 100                  # these as in `_request_meter_py.py`; the import compares them
    LONGEST = 256
    TIME = 48
    SERIES = 7
    BUCKETS = 17
    OTHER = 0

cdef int64_t IDLE = pure.IDLE
cdef int64_t LOOK = pure.LOOK
cdef int64_t[BUCKETS] BOUNDS
cdef int64_t SERIES_MASK = (1 << SERIES) - 1
cdef int64_t TIME_MASK = (<int64_t>1 << TIME) - 1

if (ROOM, LONGEST, TIME, SERIES, BUCKETS) != (pure.ROOM, pure.LONGEST, pure._TIME, pure._SERIES, len(pure.BOUNDS) + 1):
    raise ImportError("the compiled meter was built from another version")
for _at, _bound in enumerate(pure.BOUNDS):
    BOUNDS[_at] = _bound


# -- series

cdef struct Bucket:
    uint64_t count
    uint64_t conn
    int64_t latency
    int64_t at

cdef struct Series:
    uint64_t requests
    uint64_t no_responders
    int64_t total
    int64_t used
    Bucket[BUCKETS] buckets

cdef struct Ledger:
    # The series of one sort, by their numbers, and those numbers by key.
    Series[ROOM + 1] series
    int count                   # without the shared one
    int64_t looked
    Table numbers

cdef struct Pattern:
    const unsigned char *text
    Py_ssize_t size

cdef struct Shared:
    pthread_mutex_t lock
    Ledger subjects
    Ledger clients
    bint listed                 # the subjects are those of patterns
    int pattern_count
    Pattern[ROOM] patterns

cdef struct Client:
    Meter calls                 # first: the walk knows this part alone
    Shared *shared
    uint64_t conn
    Py_ssize_t key_size         # above `LONGEST`: the key is not kept; below 0: nobody has identified it
    unsigned char[LONGEST] key


cdef int _idle(Ledger *ledger, int64_t now) noexcept nogil:
    """Return the number of the series that was used least lately, if that was long ago."""
    cdef int at, found = 1
    if now - ledger.looked < LOOK:
        return OTHER
    ledger.looked = now
    for at in range(2, ledger.count + 1):
        if ledger.series[at].used < ledger.series[found].used:
            found = at
    return found if now - ledger.series[found].used > IDLE else OTHER


cdef int _number(Ledger *ledger, const unsigned char *key, Py_ssize_t size, int64_t now) noexcept nogil:
    """Return the number of a key's series, a new one where there is room."""
    cdef Entry *entry = table_find(&ledger.numbers, key, size)
    cdef Py_ssize_t at
    cdef int place
    if entry != NULL:
        return <int>entry.value
    if ledger.count < ROOM:
        place = ledger.count + 1
    else:
        place = _idle(ledger, now)
        if place == OTHER:
            return OTHER
        for at in range(ledger.numbers.used):
            entry = &ledger.numbers.entries[at]
            if entry.key != NULL and entry.value == place:
                table_remove(&ledger.numbers, entry)
                break
        memset(&ledger.series[place], 0, sizeof(Series))
    if not table_put(&ledger.numbers, key, size, place):
        return OTHER  # without memory
    if place > ledger.count:
        ledger.count = place
    return place


cdef void _observe(Series *series, int64_t latency, uint64_t conn, int64_t now, bint no_responders) noexcept nogil:
    cdef int at = 0
    cdef Bucket *bucket
    series.used = now
    if no_responders:
        series.no_responders += 1
        return
    series.total += latency
    while at < BUCKETS - 1 and latency > BOUNDS[at]:
        at += 1
    bucket = &series.buckets[at]
    bucket.count += 1
    bucket.conn, bucket.latency, bucket.at = conn, latency, now


cdef int64_t _requested(Meter *meter, const unsigned char *subject, Py_ssize_t length, int64_t now) noexcept nogil:
    cdef Client *one = <Client *>meter
    cdef Shared *shared = one.shared
    cdef char[2 * LONGEST + 8] name
    cdef int64_t number = OTHER, client = OTHER
    cdef Py_ssize_t size = -1   # of the name; below 0: it has none
    cdef int at
    if one.key_size < 0:
        return 0
    if shared.listed:
        for at in range(shared.pattern_count):
            if fits(shared.patterns[at].text, shared.patterns[at].size, subject, length):
                number = at + 1
                break
        if number == OTHER:
            return 0
    elif length <= LONGEST and is_ascii(subject, length):
        size = write_template(subject, length, name)
    pthread_mutex_lock(&shared.lock)
    if size >= 0:
        number = _number(&shared.subjects, <unsigned char *>name, size, now)
    if one.key_size <= LONGEST:
        client = _number(&shared.clients, one.key, one.key_size, now)
    shared.subjects.series[number].requests += 1
    shared.subjects.series[number].used = now
    shared.clients.series[client].requests += 1
    shared.clients.series[client].used = now
    pthread_mutex_unlock(&shared.lock)
    return (<int64_t>1 << (TIME + 2 * SERIES)) | number << (TIME + SERIES) | client << TIME | (now // 1000 & TIME_MASK)


cdef void _answered(Meter *meter, int64_t ticket, int64_t now, bint no_responders) noexcept nogil:
    cdef Client *one = <Client *>meter
    cdef Shared *shared = one.shared
    cdef int64_t latency = now - (ticket & TIME_MASK) * 1000
    cdef int64_t number = ticket >> (TIME + SERIES) & SERIES_MASK, client = ticket >> TIME & SERIES_MASK
    if latency < 0:
        latency = 0
    if latency > IDLE:
        number = client = OTHER
    pthread_mutex_lock(&shared.lock)
    _observe(&shared.subjects.series[number], latency, one.conn, now, no_responders)
    _observe(&shared.clients.series[client], latency, one.conn, now, no_responders)
    pthread_mutex_unlock(&shared.lock)


cdef class RequestMeter:
    """The requests of all connections of a proxy (see `_request_meter_py.RequestMeter`)."""

    cdef Shared *shared
    cdef tuple patterns         # kept for their texts

    def __cinit__(self, patterns=None):
        cdef bytes pattern
        cdef Pattern *one
        cdef int at
        self.shared = <Shared *>calloc(1, sizeof(Shared))
        if self.shared == NULL:
            raise MemoryError
        pthread_mutex_init(&self.shared.lock, NULL)
        if patterns is None:
            return
        pure.RequestMeter(patterns)  # it refuses what is wrong
        self.patterns = tuple(dict.fromkeys(patterns))
        self.shared.listed = True
        for at, pattern in enumerate(self.patterns):
            one = &self.shared.patterns[at]
            one.text, one.size = <const unsigned char *>PyBytes_AS_STRING(pattern), PyBytes_GET_SIZE(pattern)
            self.shared.pattern_count += 1
            if _number(&self.shared.subjects, one.text, one.size, 0) != at + 1:
                raise MemoryError

    def __dealloc__(self):
        if self.shared != NULL:
            table_clear(&self.shared.subjects.numbers)
            table_clear(&self.shared.clients.numbers)
            pthread_mutex_destroy(&self.shared.lock)
            free(self.shared)

    def client(self, uint64_t conn):
        """Return the meter of the connection of that number."""
        return ClientMeter(self, conn)

    def subjects(self):
        """Return the series of subjects, the shared one first."""
        return self._read(&self.shared.subjects)

    def clients(self):
        """Return the series of clients, the shared one first."""
        return self._read(&self.shared.clients)

    cdef list _read(self, Ledger *ledger):
        cdef Series *copied = <Series *>calloc(ROOM + 1, sizeof(Series))
        cdef list keys, found = []
        cdef Bucket *bucket
        cdef int at, place
        if copied == NULL:
            raise MemoryError
        try:
            # Whoever holds the lock waits for nobody, so this may keep the interpreter.
            pthread_mutex_lock(&self.shared.lock)
            memcpy(copied, ledger.series, (ledger.count + 1) * sizeof(Series))
            keys = [None] * (ledger.count + 1)
            for at in range(ledger.numbers.used):
                if ledger.numbers.entries[at].key != NULL:
                    keys[ledger.numbers.entries[at].value] = PyBytes_FromStringAndSize(
                        <char *>ledger.numbers.entries[at].key, ledger.numbers.entries[at].length
                    )
            pthread_mutex_unlock(&self.shared.lock)
            for place in range(len(keys)):
                buckets = []
                for at in range(BUCKETS):
                    bucket = &copied[place].buckets[at]
                    buckets.append(pure.Bucket(bucket.count, bucket.conn, bucket.latency, bucket.at))
                found.append(pure.Series(
                    keys[place], copied[place].requests, copied[place].no_responders, copied[place].total, tuple(buckets)
                ))
            return found
        finally:
            free(copied)


cdef class ClientMeter(NativeMeter):
    """The requests of one connection (see `_request_meter_py.ClientMeter`)."""

    cdef Client one
    cdef RequestMeter owner     # keeps what is shared

    def __cinit__(self, RequestMeter owner not None, uint64_t conn):
        self.owner = owner
        self.one.calls.requested, self.one.calls.answered = _requested, _answered
        self.one.shared, self.one.conn = owner.shared, conn
        self.one.key_size = -1
        self.meter = &self.one.calls

    def identify(self, str account, str user):
        """Count requests from now on, as those of this user of this account."""
        cdef bytes key = f"{account}\0{user}".encode("utf-8", "replace")
        self.one.key_size = PyBytes_GET_SIZE(key)
        if self.one.key_size <= LONGEST:
            memcpy(self.one.key, PyBytes_AS_STRING(key), self.one.key_size)

    def requested(self, bytes subject not None):
        """Take a request; return its ticket."""
        return _requested(self.meter, <const unsigned char *>PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject), self.now)

    def answered(self, int64_t ticket, *, bint no_responders):
        """Take the answer to the request of a ticket."""
        _answered(self.meter, ticket, self.now, no_responders)
