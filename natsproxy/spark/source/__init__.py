"""The `natscap` data source of Spark."""
