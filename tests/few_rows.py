"""How a Spark that stays warm is told that it will only ever see a few rows.

What it does with them is the same; it makes fewer tasks, and plans each query once. A Spark that a
test starts for itself is as its user's is.
"""

FEW_ROWS = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
