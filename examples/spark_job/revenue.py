"""An ordinary Spark job with a session of its own; its last line publishes what it computed."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import tidegate as tg

month = sys.argv[1]

spark = SparkSession.builder.appName("revenue").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

orders = spark.read.csv(
    "orders.csv", header=True, schema="id int, day date, country string, total decimal(10,2)"
)
revenue = (
    orders.where(f.date_format("day", "yyyy-MM") == month)
    .groupBy("day", "country")
    .agg(f.count("*").alias("orders"), f.sum("total").alias("total"))
)

report = tg.publish(
    revenue,
    target="warehouse:marts.revenue",
    key=["day", "country"],
    update_id=f"revenue-{month}",
)
print(f"{report.update_id}: {report.status}, {report.rows} rows")

spark.stop()
