# cython: language_level=3, cdivision=True
"""The first subject tokens of a block in C, read from its body.

A walk stops at each item that it cannot read for certain (a CONNECT, an odd line, a cut frame), which
`first_tokens.py` then reads; it may find a token twice.
"""

from libc.stdint cimport uint32_t
from libc.string cimport memchr, memcmp, memcpy, memset

from natsproxy.capture.format._frames cimport HEADERS, SUBJECT, Row, read_frame, read_message
from natsproxy.capture.format._items cimport Body, Record, read_record, skip

cdef enum:
    MOST = 64                   # tokens, and bytes of one: `first_tokens.MOST`
    SLOTS = 128                 # of the hash table, a power of two
    PARSEABLE = 4               # Flags.REDACTED: with no other flag the data are whole frames
    DEPTH = 512                 # of msgpack values: more than the packer makes


cdef struct Tokens:
    int count
    bint lost                   # too many tokens, or one is too long
    unsigned char slot[SLOTS]   # 1 + the place of a token; 0: free
    unsigned char size[MOST]
    unsigned char text[MOST][MOST]


cdef struct Seen:
    # The last message: the next one often has the same control line, and then the same token.
    const unsigned char *line
    Py_ssize_t size             # of the line; 0: there was none
    Py_ssize_t whole            # of the frame, as far as it is present


cdef struct Walk:
    Body body
    Py_ssize_t item             # start of the item to be read by Python; the end of the body: none is left
    Py_ssize_t at               # where it ends
    bint plain                  # it is `record`
    Record record
    Seen head                   # of the last record that holds a part of a frame
    Tokens tokens


cdef inline void note(Tokens *tokens, const unsigned char *text, Py_ssize_t size) noexcept nogil:
    cdef uint32_t hashed = 2166136261u
    cdef Py_ssize_t i
    cdef int place
    if size > MOST:
        tokens.lost = True
        return
    for i in range(size):
        hashed = (hashed ^ text[i]) * 16777619u
    hashed = (hashed ^ hashed >> 16) & (SLOTS - 1)
    while tokens.slot[hashed]:
        place = tokens.slot[hashed] - 1
        if tokens.size[place] == size and memcmp(tokens.text[place], text, size) == 0:
            return
        hashed = (hashed + 1) & (SLOTS - 1)
    if tokens.count == MOST:
        tokens.lost = True
        return
    tokens.size[tokens.count] = <unsigned char>size
    memcpy(tokens.text[tokens.count], text, size)
    tokens.count += 1
    tokens.slot[hashed] = <unsigned char>tokens.count


cdef inline Py_ssize_t first_token(const unsigned char *text, Py_ssize_t size) noexcept nogil:
    """Return the size of the first token of a subject."""
    cdef const unsigned char *dot = <const unsigned char *>memchr(text, 46, size)
    return size if dot == NULL else dot - text


cdef inline bint is_like(const unsigned char *p, const Seen *seen) noexcept nogil:
    return seen.size and memcmp(p, seen.line, seen.size) == 0


cdef inline bint gather(Tokens *tokens, const unsigned char *p, Py_ssize_t at, Py_ssize_t stop, bint s2c) noexcept nogil:
    """Note the first tokens of whole frames; False at a frame that is not ordinary."""
    cdef Row row
    cdef Seen seen
    cdef Py_ssize_t start, size, end
    seen.size = seen.whole = 0
    while at < stop:
        end = at + seen.whole
        if end <= stop and is_like(p + at, &seen) and p[end - 2] == 13 and p[end - 1] == 10:
            at = end
            continue
        end = read_frame(p, at, stop, s2c, &row)
        if end == 0:
            return False
        start = row.part[SUBJECT].start
        size = row.part[SUBJECT].stop - start
        if size:
            note(tokens, p + start, first_token(p + start, size))
        # Only a message has a place where its payload begins.
        seen.line, seen.size, seen.whole = p + at, max(0, row.part[HEADERS].start - at), end - at
        at = end
    return True


cdef inline bint gather_head(Walk *walk, const unsigned char *p, Py_ssize_t size, bint s2c) noexcept nogil:
    """Note the first token of a message frame whose payload may be cut; False if it is not ordinary."""
    cdef Row row
    cdef Py_ssize_t start, end
    if walk.head.whole == size and is_like(p, &walk.head):
        return True
    memset(&row, 0, sizeof(Row))
    end = read_message(p, 0, size, s2c, &row, True)
    if end == 0:
        return False
    start = row.part[SUBJECT].start
    note(&walk.tokens, p + start, first_token(p + start, row.part[SUBJECT].stop - start))
    # A whole frame is none that the next one can be like without a look at its end.
    walk.head.line, walk.head.whole = p, size
    walk.head.size = row.part[HEADERS].start if row.part[HEADERS].start + row.size >= size else 0
    return True


cdef inline void begin_walk(Walk *walk, const unsigned char *p, Py_ssize_t length) noexcept nogil:
    memset(walk, 0, sizeof(Walk))
    walk.body.p, walk.body.length = p, length


cdef inline void walk(Walk *walk) noexcept nogil:
    """Advance to the next item that Python must read, or to the end."""
    cdef const unsigned char *p = walk.body.p
    cdef Record *record = &walk.record
    cdef bint read
    while walk.at < walk.body.length and not walk.tokens.lost:
        walk.item = walk.at
        walk.plain = read_record(&walk.body, &walk.at, record)
        if walk.plain:
            if record.flags & ~PARSEABLE:
                read = gather_head(walk, p + record.data.start, record.data.stop - record.data.start, record.direction)
            else:
                read = gather(&walk.tokens, p, record.data.start, record.data.stop, record.direction)
            if not read:
                return
            continue
        walk.at = skip(&walk.body, walk.item, DEPTH)
        if walk.at < 0:
            walk.tokens.lost = True
        elif p[walk.item] == 0x9C or p[walk.item] == 0x9B:
            return
    walk.item = walk.body.length
