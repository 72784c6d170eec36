"""The class loader of Spark's tasks, for threads that plan.

Spark keeps the classes that it compiles for a plan by the class loader of the thread that asks.  In a session
of this machine driver and tasks are one JVM, but the tasks' loader is a child of the driver's: each class
would be compiled twice, once to see that it can be, once to run.  A thread that plans with the tasks' loader
leaves its classes to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_task_loader(spark: SparkSession) -> None:
    """Give this thread of Python, in its JVM, the loader that tasks have; spark: a session of this machine.

    py4j keeps a thread of Java for each thread of Python, so it goes on to hold for later calls.
    """
    jvm = spark._jvm
    assert jvm is not None
    loader = spark._jsc.sc().env().serializer().defaultClassLoader()
    if loader.isDefined():
        jvm.java.lang.Thread.currentThread().setContextClassLoader(loader.get())
