# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled meter of requests: several threads use it at once, none of them with the interpreter lock.

`_request_meter_py.py` has the same in Python and is authoritative, as `template.py` is for the templates.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy, memset

from natsproxy._lock cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock,
)
from natsproxy.protocol._subjects cimport (
    ack_template, digit, fits, inbox_template, is_ascii, is_consumer, named_template, plain_template, put_token,
    token_count, token_end, upper,
)
from natsproxy.wire._meter cimport Meter, NativeMeter
from natsproxy.wire._table cimport Entry, Table, table_clear, table_find, table_put, table_remove

from natsproxy.protocol import _request_meter_py as pure
from natsproxy.protocol.jetstream import API_FORMS

cdef enum:
    ROOM = 100                  # these as in `_request_meter_py.py`; the import compares them
    LONGEST = 256
    TIME = 48
    SERIES = 7
    BUCKETS = 17
    VERBS = 64
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


# -- templates of JetStream's subjects

cdef struct Verb:
    const char *text
    Py_ssize_t length
    int tokens
    int names               # that a call must have
    bint open               # it may have more
    int stream              # the place of the stream among the names; below 0: there is none
    bint account            # the first name is an account
    bint consumer           # the second name is a consumer

cdef Verb[VERBS] _verbs
cdef int _verb_count = 0
cdef int _longest_verb = 0
cdef list _kept = []            # the texts of the verbs


cdef int _add_verb(bytes text, tuple names, int required) except -1:
    global _verb_count, _longest_verb
    cdef Verb *verb
    if _verb_count == VERBS:
        raise ImportError("the JetStream API has more verbs than the compiled meter has room for")
    verb = &_verbs[_verb_count]
    _kept.append(text)
    verb.text, verb.length = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
    verb.tokens = text.count(b".") + 1
    verb.names = required
    verb.open = names[-1:] == ("filter",)
    verb.stream = names.index("stream") if "stream" in names else -1
    verb.account = names[:1] == ("account",)
    verb.consumer = names[1:2] == ("consumer",)
    _verb_count += 1
    _longest_verb = max(_longest_verb, verb.tokens)
    return 0


for _form in API_FORMS:
    _add_verb(_form.verb, _form.names, _form.required)


cdef Py_ssize_t _token(const unsigned char *s, Py_ssize_t length, int nth) noexcept nogil:
    """Return where a token begins; behind the subject where it has fewer."""
    cdef Py_ssize_t at = 0
    while nth and at <= length:
        at = token_end(s, at, length) + 1
        nth -= 1
    return at


cdef inline bint _is_token(const unsigned char *s, Py_ssize_t length, Py_ssize_t at, const char *text, Py_ssize_t size) noexcept nogil:
    return at <= length and token_end(s, at, length) - at == size and memcmp(&s[at], text, size) == 0


cdef const Verb *_verb_at(const unsigned char *s, Py_ssize_t length, int first, int count) noexcept nogil:
    """Return the verb of an API call, of the token `first` on: the longest that has its names; NULL for none."""
    cdef Py_ssize_t begin = _token(s, length, first), end
    cdef int tokens, at
    cdef const Verb *verb
    for tokens in range(min(_longest_verb, count - first), 0, -1):
        end = _token(s, length, first + tokens) - 1
        for at in range(_verb_count):
            verb = &_verbs[at]
            if verb.tokens != tokens or verb.length != end - begin or memcmp(verb.text, &s[begin], end - begin) != 0:
                continue
            if count - first - tokens == verb.names or (verb.open and count - first - tokens > verb.names):
                return verb
    return NULL


cdef Py_ssize_t _api_template(const unsigned char *s, Py_ssize_t length, int first, int count, char *out) noexcept nogil:
    """Write the template of an API call on a stream; 0 for any other subject."""
    cdef const Verb *verb = _verb_at(s, length, first, count)
    cdef Py_ssize_t at, stop, used
    cdef int names
    if verb == NULL or verb.stream < 0 or verb.account:
        return 0
    names = first + verb.tokens
    at = _token(s, length, names + verb.stream)
    if at > length or token_end(s, at, length) == at:
        return 0
    at = _token(s, length, names)
    stop = token_end(s, at, length)
    memcpy(out, s, stop)
    used = stop
    if verb.consumer and names + 1 < count:
        at = stop + 1
        stop = token_end(s, at, length)
        if stop == at:
            stop = at - 1
        else:
            out[used] = 46
            used += 1
            used += put_token(&s[at], stop - at, is_consumer(&s[at], stop - at), &out[used])
    if stop < length:
        out[used] = 46
        used += 1
        used += plain_template(&s[stop + 1], length - stop - 1, &out[used])
    return used


cdef Py_ssize_t _event_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    """Write the template of an advisory: from its sixth token on, the names may be a consumer's."""
    cdef Py_ssize_t at = _token(s, length, 5), stop, used
    memcpy(out, s, at)
    used = at
    while True:
        stop = token_end(s, at, length)
        used += put_token(&s[at], stop - at, is_consumer(&s[at], stop - at), &out[used])
        if stop == length:
            return used
        out[used] = 46
        used += 1
        at = stop + 1


cdef Py_ssize_t _jetstream_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    cdef int count = token_count(s, length), first = 0
    cdef Py_ssize_t used = 0
    if count > 2 and _is_token(s, length, 4, b"ACK", 3):
        used = ack_template(s, length, out)
    elif count > 2 and _is_token(s, length, 4, b"FC", 2):
        if count == 5 or count == 7 or count == 8:
            used = named_template(s, length, 2 if count == 5 else 4, out)
    if used or count <= 2:
        return used or plain_template(s, length, out)
    if _is_token(s, length, 4, b"API", 3):
        first = 2
    elif count > 3 and _is_token(s, length, _token(s, length, 2), b"API", 3):
        first = 3
    if first:
        used = _api_template(s, length, first, count, out)
    if not used and count > 5 and _is_token(s, length, 4, b"EVENT", 5):
        used = _event_template(s, length, out)
    return used or plain_template(s, length, out)


cdef Py_ssize_t write_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    """Write the template of an ASCII subject into room for twice its length."""
    cdef Py_ssize_t i
    cdef bint suspect = False
    for i in range(length):
        if digit(s[i]) or upper(s[i]):
            suspect = True
            break
    if not suspect:
        memcpy(out, s, length)
        return length
    if length > 6 and memcmp(s, b"_INBOX.", 7) == 0:
        return inbox_template(s, length, out)
    if length > 3 and memcmp(s, b"$JS.", 4) == 0:
        return _jetstream_template(s, length, out)
    return plain_template(s, length, out)


def template_of(bytes subject not None):
    """Return the template of an ASCII subject of at most `LONGEST` bytes, as the meter makes it: for tests."""
    cdef char[2 * LONGEST + 8] out
    cdef Py_ssize_t size = PyBytes_GET_SIZE(subject)
    if size > LONGEST or not is_ascii(<const unsigned char *>PyBytes_AS_STRING(subject), size):
        raise ValueError(subject)
    size = write_template(<const unsigned char *>PyBytes_AS_STRING(subject), size, out)
    return PyBytes_FromStringAndSize(out, size)


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
