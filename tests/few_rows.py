"""How a Spark that stays warm is told that it will only ever see a few rows.

What it does with them is the same; it makes fewer tasks, plans each query once, and compiles no
code for it. A Spark that a test starts for itself is as its user's is.
"""

FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
