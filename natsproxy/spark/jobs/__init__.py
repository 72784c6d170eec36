"""The jobs that run once: captures flow in, tables of Parquet flow out.

`analyze.py` reads captures, writes `frames` and `items`, and derives all other tables from these two.
`hours.py` computes tables by the hour from frames that another program has stored.  The rows are made in
`natsproxy/spark/tables/`, the folders in `natsproxy/spark/storage/`; a job only joins the two.

Read `analyze.py` first.  The job that goes on while captures grow is `natsproxy/spark/watch/`.
"""
