# cython: language_level=3
"""The templates of subjects in C: the declarations of `_template.pyx`, which describes them."""


cdef inline Py_ssize_t template_room(Py_ssize_t length) noexcept nogil:
    """Return the most bytes that the template of a subject has: empty tokens of an inbox become `*`."""
    return 2 * length + 8


cdef Py_ssize_t write_template(const unsigned char *s, Py_ssize_t length, char *out) noexcept nogil
