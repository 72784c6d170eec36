"""HTTP beside the traffic: the monitoring port, metrics, the admin API and the Toxiproxy-compatible API.

`http_server` serves an application (ASGI, made with starlette) on a socket: h11 reads and writes HTTP, and
the cost of a client is bounded.  `guard` authenticates requests.  Each API is a package or a module that
makes one application for the `ManagedProxy` objects it is given.  No failing request ends traffic: it is a
500 and a line in the log.  Only the legs with toxics (`toxiproxy`) are on the path of traffic, if that API is
enabled.

Read `http_server` first.
"""
