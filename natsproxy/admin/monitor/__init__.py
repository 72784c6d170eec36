"""The monitoring port: a proxy as nats-server's own monitoring shows a server, and metrics beside it."""
