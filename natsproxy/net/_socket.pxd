# cython: language_level=3
"""The system calls of the plane (Linux)."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "sys/epoll.h" nogil:
    cdef union epoll_data_t:
        void *ptr
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int most, int timeout)
    enum:
        EPOLLIN, EPOLLOUT, EPOLLPRI, EPOLLRDHUP, EPOLLHUP, EPOLLERR, EPOLLET, EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLL_CLOEXEC

cdef extern from "sys/socket.h" nogil:
    Py_ssize_t recv(int fd, void *buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void *data, size_t size, int flags)
    int shutdown(int fd, int how)
    enum:
        MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_WR

cdef extern from "sys/ioctl.h" nogil:
    int ioctl(int fd, unsigned long request, int *value)
    enum:
        FIONREAD

cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    enum:
        POLLIN

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int value, int flags)
    int eventfd_read(int fd, uint64_t *value)
    int eventfd_write(int fd, uint64_t value)
    enum:
        EFD_CLOEXEC, EFD_NONBLOCK

cdef extern from "unistd.h" nogil:
    int close(int fd)
    Py_ssize_t read(int fd, void *buffer, size_t size)

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <time.h>
    #include <sys/timerfd.h>
    static inline int natsproxy_timer(void) {
        return timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    }
    static inline int natsproxy_set_timer(int fd, long long at) {
        struct itimerspec t = {{0, 0}, {at / 1000000000LL, at % 1000000000LL}};
        return timerfd_settime(fd, TFD_TIMER_ABSTIME, &t, NULL);
    }
    static inline long long natsproxy_monotonic(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * 1000000000LL + t.tv_nsec;
    }
    static inline int natsproxy_poll(struct pollfd *fds, int count, long long ns) {
        struct timespec t = {ns / 1000000000LL, ns % 1000000000LL};
        return ppoll(fds, count, &t, NULL);
    }
    """
    int64_t monotonic "natsproxy_monotonic"() nogil
    int poll_ns "natsproxy_poll"(pollfd *fds, int count, int64_t ns) nogil
    int make_timer "natsproxy_timer"() nogil
    # To be readable from a time of `monotonic` on, above 0.
    int set_timer "natsproxy_set_timer"(int fd, int64_t at) nogil
