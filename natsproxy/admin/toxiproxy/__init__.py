"""Toxiproxy's API: its clients in any language can inject faults of the network and of NATS.

`app` answers requests, `proxies` has the proxies, `toxics` the toxics of one proxy.  A toxic of Toxiproxy's
own types is a stage in the chains of its connections, below the frames: `stages` has both, and why they are
not rules; `toxic_leg` puts chains over the legs.  A type `nats_<kind>` is a rule of that kind
(`nats_toxics`).
"""
