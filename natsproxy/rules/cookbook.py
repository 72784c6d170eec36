"""The cookbook: the faults and policies that people ask for, each as the text of a rules file.

`natsproxy rules cookbook NAME` prints one.  Subjects, names and times in them are meant to be changed.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Recipe(NamedTuple):
    """One fault or policy.

    title: its name for people.  sees: a sentence on what the client sees.  rules: TOML.
    """

    name: str
    title: str
    sees: str
    rules: str

    @property
    def text(self) -> str:
        """The recipe as a rules file: its description as comments above the rules."""
        return f"# {self.title}\n# {self.sees}\n{self.rules}"


_FAULTS: Final = (
    Recipe(
        "lost-publish-ack",
        "The third publish ack is lost.",
        "The publish to JetStream times out, though the message is stored; sent again, it is stored twice.",
        """
[[rules]]
name = "third publish ack"
kind = "drop"
role = "publish-ack"
subject = "orders.>"
after = 2
limit = 1
""",
    ),
    Recipe(
        "duplicate-delivery",
        "Messages are delivered twice.",
        "Each message comes again right behind itself.",
        """
[[rules]]
name = "twice"
kind = "duplicate"
direction = "s2c"
subject = "orders.>"
""",
    ),
    Recipe(
        "redelivery-storm",
        "Acks are lost.",
        "JetStream delivers each message again after the consumer's ack_wait, up to its max_deliver.",
        """
[[rules]]
name = "lost acks"
kind = "drop"
role = "ack"
""",
    ),
    Recipe(
        "corrupted-payload",
        "The payload of each tenth message is damaged.",
        "The message has its length and its headers, but some bytes of its body differ.",
        """
[[rules]]
name = "damaged"
kind = "corrupt"
direction = "s2c"
subject = "orders.>"
every = 10
""",
    ),
    Recipe(
        "cut-in-mid-message",
        "The connection ends in the middle of a message.",
        "Of the fourth message half of the payload arrives, then the connection ends; the message is lost.",
        """
[[rules]]
name = "half of the fourth"
kind = "close"
op = ["MSG", "HMSG"]
subject = "orders.>"
direction = "s2c"
after = 3
limit = 1
at = "payload"
per = "proxy"
""",
    ),
    Recipe(
        "reconnect-storm",
        "All connections end at the same moment.",
        "After ten seconds all clients are cut off; those that come back within a second are cut off again.",
        """
[[rules]]
name = "all at once"
kind = "reset"
between = ["+10s", "+11s"]
""",
    ),
    Recipe(
        "refused-connects",
        "The first three connections are refused.",
        "Connecting fails three times, and then succeeds.",
        """
[[rules]]
name = "three refusals"
kind = "refuse"
per = "proxy"
first = 3
""",
    ),
    Recipe(
        "half-open",
        "A connection goes dead without an end.",
        "Nothing comes any more, PONGs included; the client notices when too many of its PINGs are open.",
        """
[[rules]]
name = "dead after ten seconds"
kind = "pause"
between = ["10s"]
""",
    ),
    Recipe(
        "lame-duck",
        "The server announces that it will stop.",
        "The client is told of lame duck mode, and should move to another server; the connection stays.",
        """
[[rules]]
name = "about to stop"
kind = "announce"
between = ["+10s"]
lame_duck = true
""",
    ),
    Recipe(
        "denied-for-two-seconds",
        "Publishing is denied for two seconds.",
        "The client gets permissions violations, and its messages are lost; then all is as before.",
        """
[[rules]]
name = "denied at first"
kind = "deny"
subject = "orders.>"
between = ["+0s", "+2s"]
""",
    ),
    Recipe(
        "slow-consumer",
        "A client does not keep up.",
        "The server closes the connection of a slow consumer, in the middle of a message.",
        """
[[rules]]
name = "takes nothing"
kind = "stop_reading"
client = { name = "dashboard" }
between = ["1s", "20s"]
""",
    ),
    Recipe(
        "no-quorum",
        "JetStream has no leader.",
        "Publishes to JetStream and API calls fail with error 503 (10008), and nothing is stored.",
        """
[[rules]]
name = "no leader"
kind = "answer"
subject = ["orders.>", "$JS.API.>"]
error = { code = 503, err_code = 10008, description = "JetStream system temporarily unavailable" }
""",
    ),
    Recipe(
        "slow-api",
        "The JetStream API takes two seconds.",
        "API calls take two seconds; those with a shorter timeout fail, though the server has done them.",
        """
[[rules]]
name = "slow calls"
kind = "latency"
role = "api"
delay = "2s"
""",
    ),
    Recipe(
        "small-payloads",
        "The server takes 64 KiB at most.",
        "The client refuses to publish a larger payload.",
        """
[[rules]]
name = "small payloads"
kind = "info"
max_payload = "64KiB"
""",
    ),
    Recipe(
        "thin-line",
        "The line has 56 kbit/s.",
        "All arrives late, and large messages hold up those behind them, PONGs included.",
        """
[[rules]]
name = "modem"
kind = "bandwidth"
rate = "7kB"
""",
    ),
)
_POLICIES: Final = (
    Recipe(
        "keep-streams",
        "Clients cannot delete or purge streams, messages and consumers.",
        "Such calls are denied in every domain; a STREAM.UPDATE to lower limits still discards messages.",
        """
[[rules]]
name = "keep streams"
kind = "deny"
api = ["STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE", "CONSUMER.DELETE", "ACCOUNT.PURGE"]

[[rules]]
name = "keep what a message would replace"
kind = "deny"
subject = ">"
header = { Nats-Rollup = "*" }
""",
    ),
    Recipe(
        "approved-deletions",
        "Streams are deleted and purged only with a ticket.",
        "Such calls need the header X-Approved with the number of a ticket; without it they are denied.",
        """
[[rules]]
name = "deletions need a ticket"
kind = "deny"
api = ["STREAM.DELETE", "STREAM.PURGE"]
without = { X-Approved = "TICKET-*" }
""",
    ),
    Recipe(
        "read-only",
        "A user may read messages and streams, and publishes none of its own.",
        "Publishing gets a permissions violation; acks and all calls about JetStream consumers work.",
        """
[[rules]]
name = "read only"
kind = "permissions"
client = { user = "viewer*" }
subscribe = ">"

[rules.publish]
allow = [
  "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.*",
  "$JS.API.STREAM.MSG.GET.*", "$JS.API.DIRECT.GET.>", "$JS.API.CONSUMER.>", "$JS.ACK.>", "$JS.FC.>",
]
""",
    ),
    Recipe(
        "tenant-prefix",
        "The subjects of a user stand below a prefix.",
        "The client works with its subjects as before; on the server each has the prefix, in streams too.",
        """
[[rules]]
name = "tenant a"
kind = "rewrite"
client = { user = "a-*" }
prefix = "tenant-a"
jetstream = true
""",
    ),
    Recipe(
        "no-wide-subscriptions",
        "Nobody subscribes to everything.",
        "A subscription with a wildcard as its first token (>, *.a) is denied, one such as orders.> is not.",
        """
[[rules]]
name = "no wide subscriptions"
kind = "deny"
wildcard = 1
""",
    ),
    Recipe(
        "quiet-hours",
        "At night nobody publishes orders.",
        "From 22:00 to 06:00 in Berlin such publishes get a permissions violation.",
        """
[[rules]]
name = "quiet at night"
kind = "deny"
op = "PUB"
subject = "orders.>"
hours = "22:00-06:00"
zone = "Europe/Berlin"
""",
    ),
    Recipe(
        "payload-limit",
        "Orders above 64 KiB are refused.",
        "A larger payload on such a subject gets the server's own error, and the connection closes.",
        """
[[rules]]
name = "small orders"
kind = "error"
op = ["PUB", "HPUB"]
subject = "orders.>"
min_size = 65537
text = "Maximum Payload Violation"
""",
    ),
    Recipe(
        "request-limit",
        "A client name may ask for five bills a second, and ten at once.",
        "Requests above that get status 429 at once; a client that connects again has no new allowance.",
        """
[[rules]]
name = "five bills a second"
kind = "limit"
subject = "billing.>"
messages = "5/s"
burst = 10
per = "client"
action = "reply"
""",
    ),
    Recipe(
        "publish-rate",
        "A connection publishes twenty messages a second at most.",
        "What is above that arrives later, in its order; acks and other clients do not wait.",
        """
[[rules]]
name = "twenty a second"
kind = "limit"
messages = "20/s"
""",
    ),
    Recipe(
        "verified-sender",
        "Messages say who published them.",
        "Receivers find the user in Nats-Sender-User if its login was verified; no client can write that.",
        """
[[rules]]
name = "verified sender"
kind = "stamp"
facts = ["user", "account"]
""",
    ),
    Recipe(
        "no-claimed-identity",
        "Clients cannot claim to be somebody else in Nats-Request-Info (CVE-2026-33223).",
        "Messages lose that header, with which servers say who asks a service; all others are kept.",
        """
[[rules]]
name = "no claimed identity"
kind = "headers"
direction = "c2s"
remove = ["Nats-Request-Info"]
""",
    ),
    Recipe(
        "no-redirected-traces",
        "Clients cannot have traces published where they may not publish (CVE-2026-33249).",
        "Messages lose the header that asks the server for a trace, and are delivered without one.",
        """
[[rules]]
name = "no redirected traces"
kind = "headers"
direction = "c2s"
remove = ["Nats-Trace-Dest"]
""",
    ),
)
COOKBOOK: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in (*_FAULTS, *_POLICIES)}
