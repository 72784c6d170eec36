"""Captures as tables on Spark: captures flow in, tables of Parquet and a report flow out.

`source/` reads captures as a Spark data source (`format("natscap")`), `tables/` turns frames into tables,
`jobs/` writes them once, `watch/` writes them while captures grow, `storage/` knows which of them are whole,
and `report/` makes a page of them.

Read `jobs/analyze.py` first: it has the calls for Python (`register`, `read`, `read_stream`, `analyze`,
`latencies`).  `Store(spark, out).read(table)` of `storage/store.py` reads a written table; `session.py` finds
a Java and starts a Spark.
"""
