# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The templates of subjects in C; `template.py` has the rule, and is authoritative.

ASCII only.  The import fails where the JetStream API has more verbs than there is room for.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcmp, memcpy

from natsproxy.protocol._subjects cimport (
    ack_template, digit, inbox_template, is_ascii, is_consumer, named_template, plain_template, put_token, token_count,
    token_end, upper,
)

from natsproxy.protocol.jetstream import API_FORMS

cdef enum:
    VERBS = 64


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
        raise ImportError("the JetStream API has more verbs than there is room for here")
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
    """Write the template of an ASCII subject; return its length.  out: has `template_room(length)` bytes."""
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
    """Return the template of an ASCII subject, as this module makes it: for tests."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(subject)
    cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(subject)
    cdef bytearray out = bytearray(template_room(size))
    if not is_ascii(text, size):
        raise ValueError(subject)
    return bytes(out[:write_template(text, size, PyByteArray_AS_STRING(out))])
