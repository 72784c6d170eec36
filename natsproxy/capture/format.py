"""The capture format, version 1.0.  This docstring is the specification; `recordings/README.md` has
examples.

A capture is a file `<name>.ncap`, or a folder of segments `<recorder>-<n>.ncap` (recorder: 32 hex digits;
n: decimal, rising from 0, no gaps), each of which stands alone.  All integers of the framing are little-
endian; bodies are
msgpack (bin for bytes, str for text).  Times are nanoseconds.

File := Magic SegmentHeader Block* [Index Footer]

  Magic          8 bytes  89 4E 43 41 50 0D 0A 1A   ("\x89NCAP\r\n\x1a": text-mode damage shows at once)
  every part after it is a Block; SegmentHeader and Index are blocks of their own kind.

Block := BlockHeader(fixed 16) Summary(msgpack, `summary` bytes) Body(`length` bytes)

  BlockHeader   offset size
    sync            0   4    "NBLK"  (recover resynchronises on it)
    kind            4   1    1 segment header, 2 records, 3 index, others: skip
    flags           5   1    bit 0: body is zstd; others must be 0 or the block is skipped as unknown
    summary         6   2    length of the summary, bytes (at most 65,535)
    length          8   4    length of the body as stored, bytes (at most 64 MiB)
    crc            12   4    CRC-32 (zlib) of the 12 header bytes before it, the summary and the stored body

  Summary of a records block, a msgpack array; readers ignore fields after those they know:
    [mono0, wall0, t_first, t_last, items, frames, ops, raw_length, conns, tokens]
    mono0      the monotonic clock when the block was begun; every time in the body is relative to it
    wall0      the wall clock (Unix) of the same moment: wall = wall0 + t
    t_first, t_last   least and greatest item time, relative to mono0
    items      number of items in the body;  frames: number of NATS frames in it
    ops        bitmask of the ops in it (bits: wire/ops.py)
    raw_length length of the body before compression (a reader's allocation limit: at most 64 MiB)
    conns      sorted list of connection ids, or nil where there are more than 64
    tokens     sorted list of the first tokens of the subjects in it (messages and SUBs; bin, at most 64
               bytes each), or nil where there are more than 64, one is longer, or they were not looked at
               (a recorder without compiled code).  A reader that asks for other subjects need not open it

  Body of a segment header, one msgpack map:
    version [major, minor], recorder (bin 16), boot (bin 16), segment n, created wall, mono, natsproxy
    (version text),
    seed (int or nil), rules (text or nil), settings (map: what was recorded and how).  Readers refuse an
    unknown major.

  Body of a records block: items one after another.  Item := msgpack array [kind, ...]:

    0 FRAMES   [0, conn, dir, flags, frames, in_first, in_t, out_first, out_t, cause, data(, extra)]
    1 OPEN     [1, conn, t, info]          info: map (client, upstream, listener addresses, accept
    ordinal, key)
    2 CLOSE    [2, conn, t, cause, info]   info: map (bytes and frames per direction, as c2s_bytes, ...)
    3 FIRING   [3, conn, t, info]          a rule acted; info: map (see events.Firing)
    4 GAP      [4, conn or nil, t, info]   something was not recorded; info: reason, bytes, frames (how many
               were missed), t0, t1 (when the first and the last item that was missed came: not relative)
    5 PREAMBLE [5, conn, t, info]          state of a connection open at segment start; info: info (bin,
    last INFO frame,
               redacted), connect (bin, CONNECT frame, redacted), subs [[sid, subject, queue, max,
               delivered]...],
               ordinals {c2s_in, c2s_out, s2c_in, s2c_out}: the next ordinals, open: the info map of OPEN
    6 OPAQUE   [6, conn, dir, t, length]   bytes that were passed but not framed
    7 NOTE     [7, t, info]                about the recording itself (rules changed, settings)

    kinds that a reader does not know are skipped; fields after those it knows are ignored.

  FRAMES.  `data` are the wire bytes of `frames` whole frames of one direction.
    dir        0 c2s, 1 s2c
    in_first   ordinal of the first frame as it arrived at the proxy (nil: the proxy made it)
    in_t       when the read that completed it returned (nil as in_first)
    out_first  ordinal of the first frame as it left the proxy (nil: it was not sent on)
    out_t      when it was handed to the socket (nil as out_first); equal to in_t for what passed at once
    cause      nil for what passed untouched, else the name of the rule (or "proxy") that
               dropped, injected or changed it
    A rewritten frame is two items: in only (what came), out only (what went, `in_first` nil, extra.of =
    ordinal of the
    frame that it replaces, absent for an injected one).
    flags      1 CUT        the stream ended inside this frame; data is what came (frames = 1)
               2 TRUNCATED  the frame is longer than data (record_frame_max); extra.size is its true wire
               size
               4 REDACTED   secrets were replaced; the frame still parses.  With 1: data is what came and is
               known to be no
                            secret, "[withheld: N bytes]" in the place of the rest.  With 2: data is empty,
                            the bytes are no frame
               8 PAYLOAD    a payload policy acted: data is the control line and what was kept of the
               payload, without the
                            final CRLF; extra: {policy: "truncate" | "hash" | "drop", or "withheld" for
                            secrets; sha256: bin 32 for hash}
    with any flag but REDACTED, frames = 1 and data may not parse as a whole frame.

  Index: body is one msgpack array of [offset, kind, summary-array] per block before it, then Footer :=
  16 bytes:
    "NEND", u32 CRC-32 of the next 8, u64 offset of the index block.  Its summary is [blocks, items,
    frames, t_first wall, t_last wall].
    A file without it was not closed: it is readable to its last whole block, `recover` rebuilds it.

Promises: a block is sealed at 1 MiB of body or `flush` (250 ms) after its first item; items and frames
never span blocks;
blocks are independent of each other (any order, in parallel).
"""
