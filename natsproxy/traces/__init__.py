"""Traces of recorded traffic: who published, asked, got and acknowledged a message, as OpenTelemetry has it.

Input: the history of a recording.  Output: spans, in a file or to a collector.  `spans.py` makes them,
`otlp.py` writes and sends them; `protocol/traceparent.py` has the header that connects them to the spans of
programs.
"""
