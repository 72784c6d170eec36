# cython: language_level=3, cdivision=True
"""Subjects in C: their templates (defined in protocol/template.py) and the patterns that they match
(protocol/subjects.py).  ASCII only: other subjects go to the Python code, which is authoritative.
"""

from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy, memset


cdef inline bint is_ascii(const unsigned char *text, Py_ssize_t length) noexcept nogil:
    cdef uint64_t eight, all_bits = 0
    cdef Py_ssize_t at = 0
    while at + 8 <= length:
        memcpy(&eight, &text[at], 8)
        all_bits |= eight
        at += 8
    while at < length:
        all_bits |= text[at]
        at += 1
    return not all_bits & <uint64_t>0x8080808080808080


cdef inline bint digit(unsigned char c) noexcept nogil:
    return 48 <= c <= 57


cdef inline bint upper(unsigned char c) noexcept nogil:
    return 65 <= c <= 90


cdef inline bint lower(unsigned char c) noexcept nogil:
    return 97 <= c <= 122


cdef struct Kinds:
    Py_ssize_t digits, uppers, lowers, hex_uppers, hex_lowers, others, changes


cdef inline void count_kinds(const unsigned char *t, Py_ssize_t n, Kinds *k) noexcept nogil:
    cdef Py_ssize_t i
    memset(k, 0, sizeof(Kinds))
    for i in range(n):
        if digit(t[i]):
            k.digits += 1
        elif upper(t[i]):
            k.uppers += 1
            k.hex_uppers += t[i] <= 70
            k.changes += i > 0 and lower(t[i - 1])
        elif lower(t[i]):
            k.lowers += 1
            k.hex_lowers += t[i] <= 102
            k.changes += i > 0 and upper(t[i - 1])
        else:
            k.others += 1


cdef inline bint is_bare_nuid(const unsigned char *t) noexcept nogil:
    """The 22 bytes of a nuid: `identifiers.is_nuid` has the rule."""
    cdef Kinds k
    cdef Py_ssize_t i, places = 0
    count_kinds(t, 22, &k)
    if k.others or not k.uppers:
        return False
    if k.lowers:
        return k.digits or k.changes > 7
    for i in range(21):
        places += digit(t[i]) and upper(t[i + 1])
    return places > 1


cdef inline bint is_nuid(const unsigned char *t, Py_ssize_t n) noexcept nogil:
    """A nuid, with or without the additions of clients: `identifiers.split_nuid` has the rule."""
    cdef Py_ssize_t i
    if n >= 25 and memcmp(t, b"oc_", 3) == 0:
        t += 3
        n -= 3
    if n < 22 or not is_bare_nuid(t):
        return False
    if n == 22:
        return True
    if t[22] == 95:
        for i in range(23, n):
            if not digit(t[i]):
                return False
        return n > 23
    for i in range(22, n):
        if not (digit(t[i]) or 97 <= t[i] <= 102):
            return False
    return n == 26


cdef inline bint is_uuid(const unsigned char *t, Py_ssize_t n) noexcept nogil:
    cdef Kinds k
    if n != 36 or t[8] != 45 or t[13] != 45 or t[18] != 45 or t[23] != 45:
        return False
    count_kinds(t, n, &k)
    return k.digits + k.hex_uppers + k.hex_lowers == 32


cdef inline bint is_variable(const unsigned char *t, Py_ssize_t n) noexcept nogil:
    """A number, an id, digits after a separator: the same as `template._VARIABLE`."""
    cdef Py_ssize_t i, run = 0, digits = 0, small = 0, capital = 0, words = 0
    cdef bint behind = False  # the part begins after a separator, not with the token
    for i in range(n + 1):
        if i < n and digit(t[i]):
            run += 1
            digits += 1
            if run == 3:
                return True
            continue
        run = 0
        if i < n and lower(t[i]):
            small += 1
            words += t[i] > 102
        elif i < n and upper(t[i]):
            capital += 1
            words += t[i] > 70
        else:
            if digits and not words and not (small and capital) and (behind or i == n):
                if not small + capital or digits + small + capital >= (4 if behind else 8):
                    return True
            behind = True
            digits = small = capital = words = 0
    return is_uuid(t, n)


cdef inline bint is_consumer(const unsigned char *t, Py_ssize_t n) noexcept nogil:
    """A generated name, or a token that is variable anywhere."""
    cdef Kinds k
    cdef Py_ssize_t i, letters
    if n != 8:
        return is_nuid(t, n) or is_variable(t, n)
    count_kinds(t, n, &k)
    if k.others or k.digits == n:
        return is_variable(t, n)
    if not k.digits:
        return k.changes > 2
    letters = n
    while digit(t[letters - 1]):
        letters -= 1
    for i in range(letters):
        if digit(t[i]):
            return True
    for i in range(1, n):
        if upper(t[i]):
            return True
    return is_variable(t, n)


cdef inline Py_ssize_t token_end(const unsigned char *s, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    while at < length and s[at] != 46:
        at += 1
    return at


cdef inline Py_ssize_t put_token(const unsigned char *t, Py_ssize_t n, bint variable, char *out) noexcept nogil:
    """Write a token, `*` for one that is variable; return the bytes written."""
    if variable:
        out[0] = 42
        return 1
    memcpy(out, t, n)
    return n


cdef inline Py_ssize_t plain_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    cdef Py_ssize_t at = 0, stop, used = 0
    cdef bint variable, nuid, behind = False
    while True:
        stop = token_end(s, at, length)
        nuid = is_nuid(&s[at], stop - at)
        variable = nuid or (behind and not (stop - at == 1 and s[at] == 62)) or is_variable(&s[at], stop - at)
        used += put_token(&s[at], stop - at, variable, &out[used])
        if stop == length:
            return used
        out[used] = 46
        used += 1
        at = stop + 1
        behind = nuid


cdef inline Py_ssize_t named_template(const unsigned char *s, Py_ssize_t length, int names, char *out) noexcept nogil:
    """Write the template of a subject whose stream is token `names`, 2 or 4: of an ack, or of flow control."""
    cdef Py_ssize_t at = 0, stop, used = 0, nth = 0
    cdef bint variable
    while True:
        stop = token_end(s, at, length)
        variable = nth > names + 1 or (nth == 3 and names == 4) or (nth == names + 1 and is_consumer(&s[at], stop - at))
        used += put_token(&s[at], stop - at, variable, &out[used])
        if stop == length:
            return used
        out[used] = 46
        used += 1
        at = stop + 1
        nth += 1


cdef inline int token_count(const unsigned char *s, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t i
    cdef int count = 1
    for i in range(length):
        count += s[i] == 46
    return count


cdef inline Py_ssize_t ack_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    """Write the template of an ack subject; 0 where the number of tokens is not that of one."""
    cdef int count = token_count(s, length)
    if count != 9 and count < 11:
        return 0
    return named_template(s, length, 2 if count == 9 else 4, out)


cdef inline Py_ssize_t inbox_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil:
    """Write the template of a subject that begins with `_INBOX.`."""
    cdef Py_ssize_t i, used = 6
    memcpy(out, b"_INBOX", 6)
    for i in range(6, length):
        if s[i] == 46:
            memcpy(&out[used], b".*", 2)
            used += 2
    return used


cdef inline bint fits(const unsigned char *pattern, Py_ssize_t length, const unsigned char *s, Py_ssize_t n) noexcept nogil:
    """True if a valid pattern matches a subject, as in protocol/subjects.py."""
    cdef Py_ssize_t i = 0, j = 0, wanted, there
    while True:
        wanted, there = token_end(pattern, i, length), token_end(s, j, n)
        if there == j:
            return False
        if wanted - i == 1 and pattern[i] == 62:
            while there < n:
                j = there + 1
                there = token_end(s, j, n)
                if there == j:
                    return False
            return True
        if not (wanted - i == 1 and pattern[i] == 42):
            if wanted - i != there - j or memcmp(&pattern[i], &s[j], there - j) != 0:
                return False
        if wanted == length or there == n:
            return wanted == length and there == n
        i, j = wanted + 1, there + 1
