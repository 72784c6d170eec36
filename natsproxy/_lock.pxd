# cython: language_level=3
"""Locks and atomic numbers for threads that run without the interpreter lock."""

from libc.stdint cimport int64_t, uint64_t

cdef extern from *:
    """
    #include <pthread.h>
    #include <sched.h>
    #define natsproxy_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define natsproxy_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    #define natsproxy_add(p, value) ((void)__atomic_add_fetch(p, value, __ATOMIC_ACQ_REL))
    """
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *lock, void *attributes) nogil
    int pthread_mutex_destroy(pthread_mutex_t *lock) nogil
    int pthread_mutex_lock(pthread_mutex_t *lock) nogil
    int pthread_mutex_unlock(pthread_mutex_t *lock) nogil
    int sched_yield() nogil
    int load "natsproxy_load"(int *p) nogil
    void store "natsproxy_store"(int *p, int value) nogil
    void add "natsproxy_add"(int *p, int value) nogil
    uint64_t load_big "natsproxy_load"(uint64_t *p) nogil
    void add_big "natsproxy_add"(uint64_t *p, uint64_t value) nogil
