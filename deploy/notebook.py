"""A notebook in plain Python: questions to a capture, one by one.

Open it where `# %%` begins a cell (VS Code, PyCharm, Jupyter with jupytext), or run it as it is, from the root
of the repository: the captures are those of `recordings/`.
"""

# %% A session: of this machine, or of `spark-submit`, SPARK_REMOTE or a `master=`.
from tempfile import mkdtemp

from natsproxy.spark.jobs.analyze import analyze, latencies, read
from natsproxy.spark.session import open_session

spark = open_session(cores=2)
captures = ["recordings/requests-v1.ncap", "recordings/jetstream-v1.ncap"]

# %% Captures are a DataFrame, one row per frame.  The options prune before anything is decoded.
frames = read(spark, captures, op="PUB,HPUB,MSG,HMSG", payload="32")
frames.groupBy("dir", "op").count().orderBy("dir", "op").show()

# %% The same in SQL.
frames.createOrReplaceTempView("messages")
busiest = spark.sql(
    "SELECT template, count(*) AS n, sum(size) AS bytes FROM messages GROUP BY 1 ORDER BY n DESC"
)
busiest.show(10, truncate=False)

# %% All questions at once: tables, written once and read quickly.  `tables` picks some, with their sources.
out = mkdtemp(prefix="tables-")
analyze(spark, captures, out, tables=["requests", "js_api"], progress=print)

# %% Latencies of requests, by subject.
slow = latencies(spark, out)
spark.createDataFrame(slow).show(truncate=False)

# %% Calls of the JetStream API, with their errors.  Any table is one line away.
calls = spark.read.parquet(f"{out}/js_api")
calls.groupBy("verb", "outcome", "err_code").count().orderBy("verb").show(truncate=False)
