"""The two paths of frames that rules want: the fast path for neighbours, the general path for each one.

The general path asks the session's handler, then the rules, and carries out the decision.  The fast path asks
the rules once for a list of whole message frames that stand side by side; the frame that it stops at takes
the general path.
"""

from __future__ import annotations

from typing import Final

from natsproxy.rules.interface import BatchResult, Decision, FastPathFunction
from natsproxy.session.direction import Deciding, DirectionPipe
from natsproxy.session.handlers import HANDLERS, Handlers
from natsproxy.session.parts import Parts
from natsproxy.session.phase import FIRST_STOPPED, OVER, Phase
from natsproxy.session.values import UNLIMITED_WORK, WorkLimit
from natsproxy.wire import encode
from natsproxy.wire.frames import Frame, Run
from natsproxy.wire.ops import C2S, MESSAGE_OPS, S2C, Op

LONG: Final = 16_384  # bytes of headers from which on a decision is made in steps
MOST: Final = 1024  # neighbouring frames that are dealt with together
MOST_LINES: Final = 256  # the same of subscriptions
_OP: Final = 4  # the index of `Frame.op`: the look-up by name costs twice as much


class FramePaths:
    """Deals with the frames of one connection that rules or the session want to see."""

    __slots__ = ("_deliveries", "_handlers", "_pongs", "_runner", "_state")

    def __init__(self, parts: Parts, handlers: Handlers) -> None:
        self._state, self._pongs, self._deliveries, self._runner = parts
        self._handlers = handlers

    # -- the general path

    def general(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int, limit: WorkLimit = UNLIMITED_WORK
    ) -> None:
        """Deal with one frame; ordinal: its number in its direction.

        Where the limit is reached during the decision on long headers, `pipe.deciding` says so.
        """
        handler = HANDLERS.get((pipe.direction, frame.op))
        if handler is not None and not handler(self._handlers, pipe, frame, ordinal, now):
            return
        if pipe.swallowing and self._swallowed(pipe, frame, ordinal, now):
            return
        if frame.header_size > LONG:
            pipe.deciding = Deciding(frame, ordinal, self._runner.steps(pipe, frame, now))
            self.go_on(pipe, now, limit)
        else:
            self._decided(pipe, frame, ordinal, self._runner.decide(pipe, frame, now), now)

    def go_on(self, pipe: DirectionPipe, now: int, limit: WorkLimit) -> None:
        """Go on with a decision that is made in steps, up to the limit."""
        assert pipe.deciding is not None
        frame, ordinal, steps = pipe.deciding
        decision: Decision | None = None
        try:
            while True:
                next(steps)
                if limit.reached():
                    return
        except StopIteration as done:
            decision = done.value
        except Exception as error:  # as in `RuleRunner.decide`
            self._runner.failed(frame, error, now)
        pipe.deciding = None
        self._decided(pipe, frame, ordinal, decision, now)

    def _decided(
        self, pipe: DirectionPipe, frame: Frame, ordinal: int, decision: Decision | None, now: int
    ) -> None:
        runner = self._runner
        if self._state.phase is OVER:
            return
        if decision is not None:
            runner.carry_out(pipe, frame, ordinal, decision, now)
        else:
            runner.settle(pipe, frame, True, None, now)
            pipe.pass_(frame, ordinal, now)
        if pipe.direction == C2S:
            if decision is None or decision.out != ():
                self._pongs.last = None
        elif frame.op == Op.PONG:
            self._handlers.client_has_pong(pipe, now)

    # -- subscriptions

    def subscriptions(self, pipe: DirectionPipe, now: int, most: int) -> None:
        """Deal with plain SUBs and UNSUBs that follow one, `most` at most, if no rule wants them."""
        state, scanner, deliveries = self._state, pipe.scanner, self._deliveries
        wanted = scanner.interest.wants(Op.SUB) or scanner.interest.wants(Op.UNSUB)
        if wanted or pipe.swallowing or state.secrets.alert or state.phase is OVER:
            return
        first, subs, came = scanner.ordinal, state.subs, state.came
        found = scanner.subscriptions(min(most, MOST_LINES))
        if found is None:
            return
        run, lines = found
        watched = bool(deliveries.closed_sids or deliveries.resubscribing or state.tallies) or bool(
            state.pipes[S2C].scanner.watch_sids
        )
        for sid, subject, queue in lines:
            if not subject:
                if sid in subs:
                    subs.remove(sid)
                    if watched:
                        deliveries.unwatch(sid)
            elif subs.add(sid, subject, queue, subject, came) and watched:
                deliveries.closed_sids.pop(sid, None)
                state.tallies.pop(sid, None)
        pipe.pass_(run, first, now)
        self._pongs.last = None

    # -- links that lose messages

    def lose(self, pipe: DirectionPipe, run: Run, first: int, now: int) -> None:
        """Lose a run of messages; first: the ordinal of its first frame."""
        pipe.lose(run, first, now)
        self._accept(pipe, run.frames, now)

    def _swallowed(self, pipe: DirectionPipe, frame: Frame, ordinal: int, now: int) -> bool:
        """Lose a message, or answer a PING in the server's place; return whether the frame was one.

        What changes the state of the connection passes: both sides are to agree on it afterwards.
        """
        if frame.op in MESSAGE_OPS:
            self._deliveries.lost(frame)
            pipe.drop(frame, ordinal, now, "swallow")
            self._accept(pipe, 1, now)
            return True
        # The first one waits for the server: it asks whether the login is good.
        if pipe.direction == C2S and frame.op == Op.PING and self._state.phase is Phase.READY:
            pipe.drop(frame, ordinal, now, "swallow")
            self._pongs.answer_suspended(encode.PONG, now)
            return True
        return False

    def _accept(self, pipe: DirectionPipe, frames: int, now: int) -> None:
        if pipe.direction == C2S and self._state.verbose:
            self._pongs.answer_suspended(encode.OK * frames, now)

    # -- the fast path

    def fastpath(self, pipe: DirectionPipe) -> FastPathFunction | None:
        """Return the rules' fast path; None where the session itself must look at each frame."""
        if pipe.swallowing:
            return None
        direction = pipe.direction
        if direction == S2C and (self._deliveries.closed_sids or self._deliveries.resubscribing):
            return None
        return self._runner.rules.fastpath[direction]

    def neighbours(self, pipe: DirectionPipe, frame: Frame, first: int, now: int, limit: WorkLimit) -> None:
        """Deal with a whole message frame, whose ordinal is `first`, and with those that stand beside it."""
        at = 0
        state = self._state
        frames = [frame, *pipe.scanner.more(MOST)]
        if pipe.scanner.odd or state.secrets.alert:  # the session has looked at the first
            state.secrets.look(pipe.direction, frames[1:])
        while at < len(frames) and not (state.phase is OVER or pipe.phase >= FIRST_STOPPED):
            if at and limit.reached():
                break
            for result in self._batch_results(pipe, frames, at, first, now):
                self._carry_out_batch(pipe, frames[at : result.stop], result, first + at, now)
                at = result.stop
            if at < len(frames) and self._state.phase is not OVER:
                self.general(pipe, frames[at], first + at, now, limit)
                at += 1
                if pipe.deciding is not None:
                    break
        pipe.scanner.untake(frames[at:])

    def _batch_results(
        self, pipe: DirectionPipe, frames: list[Frame], at: int, first: int, now: int
    ) -> list[BatchResult]:
        fastpath = self.fastpath(pipe)
        if fastpath is None:
            return []
        try:
            return fastpath(frames, at, first + at, now)
        except Exception as error:  # as in `RuleRunner.decide`
            self._runner.failed(frames[at], error, now)
            return []

    def _carry_out_batch(
        self, pipe: DirectionPipe, frames: list[Frame], result: BatchResult, first: int, now: int
    ) -> None:
        """Do with neighbours as the rules' fast path decided."""
        out = result.out
        if out is None:
            ops = 0
            for frame in frames:
                ops |= 1 << frame[_OP]
            run = Run(frames[0].buffer, frames[0].start, frames[-1].end, len(frames), ops)
            if result.until is None:
                pipe.pass_(run, first, now)
            else:
                pipe.hold(run, first, now, result.until, result.cause)
        elif out:
            pipe.change(frames, out, first, now, result.cause)
        else:
            for place, frame in enumerate(frames):
                self._runner.settle(pipe, frame, False, None, now)
                pipe.drop(frame, first + place, now, result.cause)
        if pipe.direction == C2S and out != ():
            self._pongs.last = None
