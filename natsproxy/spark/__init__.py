"""Captures as tables on Spark: the `natscap` data source, the tables, and the jobs that write them.

`natsproxy.spark.jobs.analyze` is the way in from Python (`register`, `read`, `read_stream`, `analyze`,
`latencies`), `natsproxy.spark.watch.job` the job that goes on, `natsproxy.spark.storage.store` reads what
either has
written (`Store(spark, out).read(table)`), `natsproxy.spark.session` finds a Java and a Spark.
"""
