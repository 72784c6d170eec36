"""HTTP beside the traffic: the monitoring port, metrics, the admin API and the Toxiproxy-compatible API.

`http_server` serves an application (ASGI, made with starlette) on a socket: h11 reads and writes HTTP, and
what a client may cost is bounded.  `guard` says who may ask.  Each API is a package or a module that makes
one application for the `ManagedProxy` objects it is given.  No failure of an answer ends traffic: a request
that fails is a 500 and a line in the log.  Only the legs with toxics (`toxiproxy`) are on the path of
traffic, where somebody asks for that API.

Read `http_server` first.
"""
