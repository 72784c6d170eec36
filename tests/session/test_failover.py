"""Failover: a lost server is replaced, and its client notices as little as possible."""

from __future__ import annotations

import base64

import pytest

from natsproxy.events import FailedOver
from natsproxy.rules.interface import LinkConditions
from natsproxy.session.phase import Phase
from natsproxy.session.values import Budget
from natsproxy.wire.frames import Need
from natsproxy.wire.ops import C2S, S2C, Direction, Op
from tests.session.playbook import CONNECT, INFO, OneRule, Playbook

SECOND = 1_000_000_000
TAKES_503 = CONNECT.replace(b'"headers":true', b'"headers":true,"no_responders":true')
NEW = INFO.replace(b'"S"', b'"T","server_name":"two"')
SMALLER = NEW.replace(b"1048576", b"1024")
NO_HEADERS = NEW.replace(b'"headers":true', b'"headers":false')
PULL = b'{"batch":5,"expires":10000000000}'
NEXT = b"$JS.API.CONSUMER.MSG.NEXT.S.c"


def holding(connect: bytes = TAKES_503, chain: OneRule | None = None, **settings: object) -> Playbook:
    play = Playbook(chain, failover="hold", **settings)
    play.server(INFO).client(connect + b"PING\r\n").server(b"PONG\r\n")
    assert play.to_server == connect + b"PING\r\n"
    assert play.to_client == INFO + b"PONG\r\n"
    return play


def pull(reply: bytes = b"_INBOX.p", body: bytes = PULL) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (NEXT, reply, len(body), body)


def status(text: bytes) -> bytes:
    size = len(b"NATS/1.0 \r\n\r\n") + len(text)
    return b"HMSG _INBOX.p 1 %d %d\r\nNATS/1.0 %b\r\n\r\n\r\n" % (size, size, text)


def lost(play: Playbook) -> Playbook:
    play.eof(S2C)
    assert (play.end, play.redials) == (None, 1)
    return play


def test_the_new_server_gets_login_subscriptions_and_what_waited() -> None:
    play = holding().client(b"SUB a 1\r\nSUB b q 2\r\nSUB gone 3\r\nUNSUB 3\r\n")
    assert play.to_server
    lost(play).nothing()
    play.client(b"PUB a 2\r\nhi\r\nPUB b 2\r\nho\r\n").nothing()
    play.server(NEW)
    assert play.to_client == NEW
    assert play.to_server == TAKES_503 + b"SUB a 1\r\nSUB b q 2\r\nPING\r\n"
    play.server(b"MSG a 1 1\r\nx\r\n")
    assert play.to_client == b"MSG a 1 1\r\nx\r\n"
    assert play.restored == 0
    play.server(b"PONG\r\n")
    assert play.restored == 1
    play.nothing()
    play.resume()
    assert play.to_server == b"PUB a 2\r\nhi\r\nPUB b 2\r\nho\r\n"
    (event,) = [event for event in play.events if isinstance(event, FailedOver)]
    assert (event.server, event.bytes, event.subscriptions, event.refused) == ("two", 26, 2, 0)
    assert play.session.lifecycle.phase is Phase.READY
    play.client(b"PING\r\n").server(b"PONG\r\n")
    assert (play.to_server, play.to_client) == (b"PING\r\n", b"PONG\r\n")


def test_without_the_setting_the_connection_ends() -> None:
    play = Playbook().greeted().eof(S2C)
    assert play.end is not None
    assert play.end.cause == "server-closed"
    assert not play.redials


@pytest.mark.parametrize(
    ("connect", "why"),
    [
        (CONNECT.replace(b"{", b'{"nkey":"UABC","sig":"xyz",'), "a signature"),
        (CONNECT.replace(b'"verbose":false', b'"verbose":true'), "+OKs"),
    ],
)
def test_a_login_that_cannot_be_repeated_ends_the_connection(connect: bytes, why: str) -> None:
    play = Playbook(failover="hold")
    play.server(INFO).client(connect + b"PING\r\n").server(b"PONG\r\n").eof(S2C)
    assert play.end is not None, why
    assert play.end.cause == "server-closed"


@pytest.mark.parametrize("secret", [b'"user":"u","pass":"p",', b'"auth_token":"t",', b'"jwt":"e30.e30.x",'])
def test_other_logins_are_repeated(secret: bytes) -> None:
    connect = CONNECT.replace(b"{", b"{" + secret)
    play = lost(holding(connect)).server(NEW)
    assert play.to_server == connect + b"PING\r\n"


def test_a_second_login_is_not_repeated() -> None:
    play = holding().client(CONNECT + b"PING\r\n").server(b"PONG\r\n").eof(S2C)
    assert play.end is not None


def test_an_error_of_the_server_ends_the_connection() -> None:
    play = holding().server(b"-ERR 'Stale Connection'\r\n").eof(S2C)
    assert play.end is not None


def test_a_server_lost_inside_a_message_that_the_client_has_in_part_ends_the_connection() -> None:
    play = holding(queue_bytes=100_000).client(b"SUB a 1\r\n").server(b"MSG a 1 900000\r\nbegin")
    assert play.to_client.endswith(b"begin")
    play.eof(S2C)
    assert play.end is not None


@pytest.mark.parametrize(
    "begun", [b"MSG a 1 5\r", b"MSG a 1 5\r\nhel", b"MSG a 1 900000\r\n" + b"x" * 899_999]
)
def test_a_message_that_the_lost_server_has_begun_is_forgotten(begun: bytes) -> None:
    play = holding().client(b"SUB a 1\r\n").server(begun)
    assert play.to_server == b"SUB a 1\r\n"
    assert not play.to_client
    lost(play).server(NEW + b"MSG a 1 2\r\nok\r\n")
    assert play.to_client == NEW + b"MSG a 1 2\r\nok\r\n"


def test_a_client_that_cannot_be_held_gets_messages_as_they_come() -> None:
    connect = CONNECT.replace(b"{", b'{"nkey":"UABC","sig":"xyz",')
    play = Playbook(failover="hold").server(INFO).client(connect + b"PING\r\n").server(b"PONG\r\n")
    play.server(b"MSG a 1 900000\r\nbegin")
    assert play.to_client.endswith(b"begin")


def test_large_messages_go_on_as_they_come_where_memory_is_short() -> None:
    play, budget = holding(), Budget(1)
    budget.used = 2
    play.session.pipes[S2C]._budget = budget
    play.server(b"MSG a 1 900000\r\nbegin")
    assert play.to_client.endswith(b"begin")


def test_pings_are_answered_meanwhile() -> None:
    play = holding().client(b"PING\r\n")
    assert play.to_server == b"PING\r\n"
    lost(play)
    assert play.to_client == b"PONG\r\n", "of the lost server"
    play.client(b"PING\r\nPUB a 1\r\nx\r\nPING\r\n")
    assert play.to_client == b"PONG\r\nPONG\r\n"
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\nPUB a 1\r\nx\r\n"


def test_requests_under_way_get_a_503_and_later_ones_wait() -> None:
    play = holding().client(b"SUB _INBOX.* 1\r\nPUB svc _INBOX.a 1\r\n1\r\nPUB svc _INBOX.b 1\r\n2\r\n")
    play.server(b"MSG _INBOX.a 1 2\r\nok\r\n")
    assert play.to_server
    assert play.to_client
    lost(play)
    assert play.to_client == b"HMSG _INBOX.b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    play.client(b"PUB svc _INBOX.c 1\r\n3\r\n").server(NEW).eof(S2C)  # lost again
    assert play.redials == 2
    assert b"503" not in play.to_client
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server.endswith(b"SUB _INBOX.* 1\r\nPING\r\nPUB svc _INBOX.c 1\r\n3\r\n")
    play.server(b"MSG _INBOX.c 1 2\r\nok\r\n")
    assert play.to_client.endswith(b"MSG _INBOX.c 1 2\r\nok\r\n")


def test_a_client_that_does_not_know_503_gets_none() -> None:
    play = holding(CONNECT).client(b"SUB _INBOX.* 1\r\nPUB svc _INBOX.a 1\r\n1\r\n")
    assert play.to_server
    lost(play).nothing()


def test_the_count_that_is_left_goes_on() -> None:
    play = holding().client(b"SUB a 1\r\nUNSUB 1 3\r\n").server(b"MSG a 1 1\r\nx\r\n")
    assert play.to_server
    lost(play).server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"SUB a 1\r\nUNSUB 1 2\r\nPING\r\n"
    assert play.to_client
    play.server(b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\nx\r\nMSG a 1 1\r\nx\r\n")
    assert play.to_client == b"MSG a 1 1\r\nx\r\nMSG a 1 1\r\nx\r\n"
    assert not play.session.subs


def test_a_subscription_that_ends_meanwhile_is_not_subscribed_again() -> None:
    play = holding().client(b"SUB a 1\r\nSUB b 2\r\n")
    assert play.to_server
    lost(play).client(b"UNSUB 1\r\nSUB c 3\r\n").server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"SUB b 2\r\nPING\r\nUNSUB 1\r\nSUB c 3\r\n"


def test_a_sid_that_is_used_again_meanwhile_has_its_new_subject() -> None:
    play = holding().client(b"SUB a 1\r\n")
    assert play.to_server
    lost(play).client(b"UNSUB 1\r\nSUB b 1\r\n").server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\nUNSUB 1\r\nSUB b 1\r\n"


def test_the_rest_of_a_publish_that_was_begun_is_lost() -> None:
    play = holding().client(b"PUB a 900000\r\n" + b"x" * 100)
    assert play.to_server.startswith(b"PUB a")
    lost(play).client(b"x" * 899_900 + b"\r\nPUB b 1\r\ny\r\n").server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\nPUB b 1\r\ny\r\n"


def test_a_publish_that_begins_while_there_is_no_server_is_whole() -> None:
    whole = b"PUB a 900000\r\n" + b"x" * 900_000 + b"\r\n"
    play = lost(holding()).client(whole[:1000]).server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\n"
    play.client(whole[1000:]).at(1)
    assert play.to_server == whole


@pytest.mark.parametrize(("info", "why"), [(SMALLER, "payloads of 1024"), (NO_HEADERS, "no headers")])
def test_a_server_that_can_do_less_ends_the_connection(info: bytes, why: str) -> None:
    play = lost(holding()).server(info)
    assert play.end is not None
    assert play.end.cause == "upstream-down"
    assert why in play.end.detail
    play.nothing()


def test_nobody_is_held_for_ever() -> None:
    play = lost(holding(failover_hold=5 * SECOND)).client(b"PUB a 1\r\nx\r\n").at(5 * SECOND - 1)
    assert play.end is None
    play.at(5 * SECOND)
    assert play.end is not None
    assert play.end.cause == "upstream-down"
    assert "5s" in play.end.detail


def test_a_server_that_never_accepts_the_login_has_the_same_time() -> None:
    play = lost(holding(failover_hold=5 * SECOND)).server(NEW).at(3 * SECOND).eof(S2C).server(NEW)
    assert play.end is None
    play.at(5 * SECOND)
    assert play.end is not None


def test_a_refused_login_ends_the_connection_and_the_client_does_not_see_it() -> None:
    play = lost(holding()).server(NEW + b"-ERR 'Authorization Violation'\r\n")
    assert play.to_client == NEW
    assert play.end is not None
    assert play.end.cause == "upstream-down"


def test_a_full_server_is_replaced_too() -> None:
    play = lost(holding()).server(NEW + b"-ERR 'maximum connections exceeded'\r\n").eof(S2C)
    assert play.end is None
    assert play.redials == 2


def test_the_limit_of_what_waits_stops_the_reading() -> None:
    play = lost(holding(queue_bytes=100_000))
    frame = b"PUB a 1000\r\n" + b"x" * 1000 + b"\r\n"
    sent = 0
    while not play.session.pipes[C2S].full:
        play.client(frame)
        sent += 1
    assert sent < 100
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server.count(frame) == sent
    assert not play.session.pipes[C2S].full


def test_a_client_that_leaves_meanwhile_is_gone_unless_something_waits() -> None:
    play = lost(holding()).eof(C2S)
    assert play.end is not None
    assert play.end.cause == "client-closed"
    play = lost(holding()).client(b"PUB a 1\r\nx\r\n").eof(C2S)
    assert play.end is None
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\nPUB a 1\r\nx\r\n"
    assert play.finished == [C2S]


def test_a_drain_ends_a_client_without_a_server() -> None:
    play = lost(holding())
    play.session.drain(0)
    play.do(play.session.take_actions())
    assert play.end is not None
    assert play.end.cause == "drained"


def test_lame_duck_mode_is_kept_from_clients_that_can_be_held() -> None:
    lame = NEW.replace(b"{", b'{"ldm":true,')
    play = holding().server(lame)
    assert b"ldm" not in play.to_client
    play = Playbook(failover="hold")
    play.server(INFO).client(CONNECT.replace(b"{", b'{"nkey":"U","sig":"x",') + b"PING\r\n").server(
        b"PONG\r\n"
    )
    play.server(lame)
    assert b'"ldm":true' in play.to_client


def test_a_fence_of_ours_passes_and_its_work_is_done() -> None:
    done: list[int] = []
    play = holding()
    play.do(play.session.fence(done.append, 0))
    assert play.to_server == b"PING\r\n"
    lost(play)
    assert done == [0]
    play.do(play.session.fence(done.append, 0))
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"PING\r\nPING\r\n"
    assert len(done) == 1
    play.server(b"PONG\r\n")
    assert len(done) == 2


def test_records_name_what_is_ours() -> None:
    play = holding().client(b"SUB a 1\r\n")
    assert play.to_server
    play.records.clear()
    lost(play).client(b"PING\r\nPUB a 1\r\nx\r\n").server(NEW + b"PONG\r\n").resume()
    ours = [(one.direction, bytes(one.data).split()[0]) for one in play.records if one.cause == "failover"]
    assert ours == [
        (C2S, b"PING"),
        (S2C, b"PONG"),
        (C2S, b"CONNECT"),
        (C2S, b"SUB"),
        (C2S, b"PING"),
    ]
    (publish,) = [one for one in play.records if bytes(one.data).startswith(b"PUB")]
    assert publish.in_first is not None
    assert publish.out_first is not None


def test_a_pull_is_sent_again_for_what_is_left_of_it() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull())
    play.server(b"MSG data 1 $JS.ACK.x 1\r\n1\r\nMSG data 1 $JS.ACK.y 1\r\n2\r\n")
    play.server(status(b"100 Idle Heartbeat"))
    assert play.to_server
    play.at(4 * SECOND)
    lost(play).server(NEW)
    body = b'{"batch":3,"expires":6000000000}'
    assert play.to_server == TAKES_503 + b"SUB _INBOX.p 1\r\n" + pull(body=body) + b"PING\r\n"


@pytest.mark.parametrize(
    "answers",
    [
        b"MSG data 1 $JS.ACK.x 1\r\n1\r\n" * 5,
        status(b"408 Request Timeout"),
    ],
)
def test_a_pull_that_is_over_is_not_sent_again(answers: bytes) -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull()).server(answers)
    assert play.to_server
    lost(play).server(NEW)
    assert play.to_server == TAKES_503 + b"SUB _INBOX.p 1\r\nPING\r\n"


def test_a_pull_whose_time_is_over_is_not_sent_again() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull()).at(11 * SECOND)
    assert play.to_server
    lost(play).server(NEW)
    assert b"NEXT" not in play.to_server


def test_a_pull_is_asked_again_until_its_consumer_has_a_leader() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull())
    assert play.to_server
    lost(play).server(NEW + b"PONG\r\n").resume()
    assert NEXT in play.to_server
    assert play.to_client == NEW
    play.server(b"HMSG _INBOX.p 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n").nothing()
    play.at(SECOND)
    assert play.to_server == pull(body=b'{"batch":5,"expires":9750000000}')


def test_a_pull_that_was_sent_once_gets_its_503() -> None:
    refused = b"HMSG _INBOX.p 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull()).server(refused)
    assert play.to_client == refused


def test_a_pull_that_waits_goes_out_once() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n")
    assert play.to_server
    lost(play).client(pull()).server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"SUB _INBOX.p 1\r\nPING\r\n" + pull()


def test_a_pull_that_a_stopping_server_ends_goes_on() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull())
    assert play.to_server
    play.server(status(b"409 Server Shutdown")).nothing()
    lost(play).server(NEW)
    assert play.to_server == TAKES_503 + b"SUB _INBOX.p 1\r\n" + pull() + b"PING\r\n"


def test_a_pull_whose_consumer_is_moved_by_another_stopping_server_is_sent_again() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n" + pull()).server(status(b"409 Server Shutdown"))
    assert play.to_server
    play.at(SECOND)
    assert play.to_server == pull(body=b'{"batch":5,"expires":9750000000}')
    play.server(status(b"409 Consumer Deleted"))
    assert play.to_client == status(b"409 Consumer Deleted")


def test_a_server_that_is_lost_before_the_client_goes_on_leaves_the_same_time() -> None:
    play = lost(holding(failover_hold=5 * SECOND)).at(SECOND).server(NEW + b"PONG\r\n")
    assert play.restored == 1
    play.eof(S2C).server(NEW).at(5 * SECOND - 1)
    assert play.end is None
    play.at(5 * SECOND)
    assert play.end is not None
    assert play.end.cause == "upstream-down"


def test_a_publish_above_the_limit_of_what_waits_goes_on_at_the_new_server() -> None:
    whole = b"PUB a 900000\r\n" + b"x" * 900_000 + b"\r\n"
    play = lost(holding(queue_bytes=100_000)).client(whole[:200_000])
    assert play.session.pipes[C2S].full
    play.server(NEW + b"PONG\r\n").resume()
    assert not play.session.pipes[C2S].full, "its rest would never be read"
    play.client(whole[200_000:]).at(1)
    assert play.to_server == TAKES_503 + b"PING\r\n" + whole


def test_a_login_that_the_client_changes_meanwhile_is_not_used_for_what_it_sent_before() -> None:
    play = lost(holding()).client(b"PUB a 1\r\nx\r\n" + CONNECT.replace(b"{", b'{"user":"other",'))
    play.server(NEW)
    assert play.end is not None
    play.nothing()


def test_a_client_that_is_drained_as_its_server_goes_is_not_held() -> None:
    play = holding()
    play.session.drain(0)
    play.do(play.session.take_actions())
    play.eof(S2C)
    assert play.end is not None
    assert play.end.cause == "drained"


def test_a_pull_on_a_limited_subscription_does_not_keep_it() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\nUNSUB 1 1\r\n" + pull())
    play.server(b"MSG data 1 $JS.ACK.x 1\r\n1\r\n")
    assert not play.session.subs


def test_secrets_of_the_repeated_login_are_in_no_record() -> None:
    connect = CONNECT.replace(b"{", b'{"user":"u","pass":"hidden",')
    play = lost(holding(connect)).server(NEW + b"PONG\r\n").resume()
    assert play.to_server == connect + b"PING\r\n"
    assert b"hidden" not in b"".join(bytes(one.data) for one in play.records)


def test_a_pull_leaves_a_rule_the_answers_that_it_watches() -> None:
    play = holding().client(b"SUB _INBOX.p 1\r\n")
    play.session.watch_subject(S2C, b"_INBOX.p", Need.PAYLOAD)
    play.client(pull())
    watches = play.session.pipes[S2C].scanner.watch_subjects
    assert watches[b"_INBOX.p"] == Need.PAYLOAD
    play.server(status(b"408 Request Timeout"))
    assert watches[b"_INBOX.p"] == Need.PAYLOAD


def test_a_subscription_that_is_moved_meanwhile_begins_with_its_old_subject() -> None:
    play = lost(holding().client(b"SUB a 1\r\n"))
    assert play.to_server
    play.session.subscriptions.resubscribe([(b"1", b"b")], play.session.rules, 0)
    play.do(play.session.take_actions())
    play.server(NEW + b"PONG\r\n").resume()
    assert play.to_server == TAKES_503 + b"SUB a 1\r\nPING\r\nUNSUB 1\r\nPING\r\nSUB b 1\r\n"


def test_another_server_that_does_not_look_at_the_login_vouches_for_nobody() -> None:
    asks = NEW.replace(b"{", b'{"auth_required":true,')
    claims = base64.urlsafe_b64encode(b'{"sub":"UABC","iss":"AABC"}').rstrip(b"=")
    play = Playbook(failover="hold").server(INFO.replace(b"{", b'{"auth_required":true,'))
    play.client(CONNECT.replace(b"{", b'{"jwt":"e30.%b.x",' % claims) + b"PING\r\n").server(b"PONG\r\n")
    assert play.session.who.user_by == "server"
    lost(play).server(NEW + b"PONG\r\n").resume().server(asks)
    assert play.session.who.user_by == "client"


def test_a_request_that_the_client_has_begun_to_send_meanwhile_gets_no_503() -> None:
    whole = b"PUB svc _INBOX.a 900000\r\n" + b"x" * 900_000 + b"\r\n"
    play = holding().client(b"SUB _INBOX.* 1\r\n")
    lost(play).client(whole[:200_000]).server(NEW).eof(S2C)
    assert b"503" not in play.to_client
    play.server(NEW + b"PONG\r\n").resume().client(whole[200_000:]).at(1)
    assert play.to_server.endswith(whole)


@pytest.mark.parametrize("named", [b"", b"NEXT"])
def test_the_account_is_the_one_that_the_new_server_says(named: bytes) -> None:
    chain = OneRule(lambda *_: None, Op.PUB.bit)
    play = holding(chain=chain).server(INFO.replace(b"{", b'{"remote_account":"LOST",'))
    lost(play).server(NEW + b"PONG\r\n")
    assert play.session.who.account == "LOST", "the new server says it behind its first PONG"
    before = chain.bound_times
    if named:
        play.server(NEW.replace(b"{", b'{"remote_account":"%b",' % named))
    play.resume()
    (event,) = [event for event in play.events if isinstance(event, FailedOver)]
    assert play.session.who.account == event.who.account == named.decode()
    assert chain.bound_times == before + 1


def test_what_a_slow_link_has_not_taken_goes_to_the_new_server() -> None:
    class Slow(OneRule):
        def conditions(self, direction: Direction, now: int) -> tuple[LinkConditions | None, int | None]:
            return self.link, None

    chain = Slow(lambda *_: None, 0)
    play = holding(chain=chain)
    chain.link = LinkConditions(rate=1000)
    play.session.pause(0, lasts=0)  # it looks at the conditions then
    frames = [b"PUB a 100\r\n%0100d\r\n" % number for number in range(10)]
    for frame in frames:
        play.client(frame)
    play.at(SECOND // 2)
    sent = play.to_server
    assert b"".join(frames).startswith(sent)
    begun = len(sent) // len(frames[0]) + 1
    assert 3 < begun < 7
    lost(play).server(NEW).at(2 * SECOND)
    play.server(b"PONG\r\n").resume().at(20 * SECOND)
    assert play.to_server == TAKES_503 + b"PING\r\n" + b"".join(frames[begun:])
