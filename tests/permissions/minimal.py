"""Minimal permissions of programs of the zoo, written by hand from their code and that of their clients.

nats-py 2.16: `js/manager.py` (subjects of the API), `js/kv.py`, `js/object_store.py`, `js/client.py`;
nats.js 3: `jsmstream_api.js`, `jsmconsumer_api.js`, `consumer.js`, `kv.js`, `objectstore.js`.  Inboxes are
`_INBOX.>`, ids are `*`.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Minimal(NamedTuple):
    """The permissions of a program.  responses: it answers requests."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...] = ("_INBOX.>",)
    responses: bool = False


def api(*calls: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{call}" for call in calls)


MINIMAL: Final = {
    # add_stream; publish; a request to another service; pull_subscribe asks for the consumer, then makes it
    "shop": Minimal(
        (
            *api("STREAM.CREATE.ORDERS", "CONSUMER.INFO.ORDERS.billing"),
            *api("CONSUMER.CREATE.ORDERS.billing.orders.*.created", "CONSUMER.MSG.NEXT.ORDERS.billing"),
            "$JS.ACK.ORDERS.billing.>",
            "orders.*.created",
            "orders.*.reserved",
            "inventory.reserve",
        )
    ),
    "worker": Minimal(
        (
            *api("STREAM.CREATE.JOBS", "CONSUMER.INFO.JOBS.workers"),
            *api("CONSUMER.CREATE.JOBS.workers.jobs.new", "CONSUMER.MSG.NEXT.JOBS.workers"),
            "$JS.ACK.JOBS.workers.>",
            "jobs.done",
        )
    ),
    # watchall is a nameless ordered push consumer whose pending messages are asked for
    "settings": Minimal(
        (
            *api("STREAM.CREATE.KV_settings", "CONSUMER.CREATE.KV_settings", "CONSUMER.INFO.KV_settings.*"),
            "$KV.settings.region",
            "$KV.settings.instance",
            "$KV.settings.ready",
        )
    ),
    "tally": Minimal(
        (
            *api("STREAM.CREATE.KV_tally", "STREAM.INFO.KV_tally", "STREAM.MSG.GET.KV_tally"),
            "$KV.tally.total",
            "tally.done.ann",
            "tally.done.bob",
        )
    ),
    "raffle": Minimal(
        (
            *api("STREAM.CREATE.KV_numbers", "STREAM.INFO.KV_numbers", "STREAM.MSG.GET.KV_numbers"),
            "$KV.numbers.next",
        )
    ),
    "seats": Minimal((*api("STREAM.CREATE.KV_seats", "STREAM.MSG.GET.KV_seats"), "$KV.seats.left")),
    # chunks have generated names, descriptions the object's name in base64; old chunks are purged; ordered
    # consumers look for their stream by its subject
    "files": Minimal(
        (
            *api("STREAM.CREATE.OBJ_reports", "STREAM.PURGE.OBJ_reports", "STREAM.MSG.GET.OBJ_reports"),
            *api("STREAM.NAMES", "CONSUMER.CREATE.OBJ_reports", "CONSUMER.INFO.OBJ_reports.*"),
            "$O.reports.C.*",
            "$O.reports.M.*",
        )
    ),
    "beacon": Minimal(("health.*", "inventory.reserve")),
    "desk": Minimal(("desk.ask",), ("_INBOX.>", "desk.ask desk"), responses=True),
    "pool": Minimal(("tasks.done", "tasks.ready"), ("tasks.run pool",)),
    # each instance has an id; the client finds both and asks each one
    "catalog": Minimal(
        ("$SRV.PING.catalog", "$SRV.INFO.catalog.*", "catalog.price"),
        (
            "_INBOX.>",
            "catalog.price q",
            *(
                f"$SRV.{verb}{of}"
                for verb in ("PING", "INFO", "STATS")
                for of in ("", ".catalog", ".catalog.*")
            ),
        ),
        responses=True,
    ),
    # jetstreamManager asks for INFO
    "orders": Minimal(
        (
            *api("INFO", "STREAM.CREATE.SALES", "CONSUMER.CREATE.SALES.billing"),
            *api("CONSUMER.INFO.SALES.billing", "CONSUMER.MSG.NEXT.SALES.billing"),
            "$JS.ACK.SALES.billing.>",
            "sales.*.created",
            "audit.north",
            "audit.south",
            "inventory.reserve",
        )
    ),
    "poller": Minimal(
        (
            *api("INFO", "STREAM.CREATE.WORK", "CONSUMER.CREATE.WORK.pollers"),
            *api("CONSUMER.INFO.WORK.pollers", "CONSUMER.MSG.NEXT.WORK.pollers"),
            "$JS.ACK.WORK.pollers.>",
            "work.done",
        )
    ),
    "pullers": Minimal(
        (
            *api("INFO", "STREAM.CREATE.PULLERS", "CONSUMER.CREATE.PULLERS.crew"),
            *api("CONSUMER.INFO.PULLERS.crew", "CONSUMER.MSG.NEXT.PULLERS.crew"),
            "$JS.ACK.PULLERS.crew.>",
            "pullers.jobs",
            "pullers.done",
        )
    ),
    # a watch and a get of an object are ordered push consumers with names of their own; the consumer at the
    # end is an ordered pull consumer without a filter
    "watch": Minimal(
        (
            *api("INFO", "STREAM.CREATE.KV_flags", "STREAM.INFO.KV_flags", "CONSUMER.CREATE.KV_flags.*"),
            *api("CONSUMER.CREATE.KV_flags.*.$KV.flags.>", "CONSUMER.INFO.KV_flags.*"),
            *api("CONSUMER.MSG.NEXT.KV_flags.*", "CONSUMER.DELETE.KV_flags.*"),
            *api("STREAM.CREATE.OBJ_photos", "STREAM.INFO.OBJ_photos", "STREAM.MSG.GET.OBJ_photos"),
            *api("CONSUMER.CREATE.OBJ_photos.*.$O.photos.C.*", "CONSUMER.DELETE.OBJ_photos.*"),
            "$KV.flags.instance",
            "$KV.flags.region",
            "$KV.flags.ready",
            "$O.photos.C.*",
            "$O.photos.M.*",
        )
    ),
}
