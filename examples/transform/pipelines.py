"""One sync whose rows pass through a function; its name is the sync's."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import tidegate as tg


@tg.sync(
    source="shop:public.orders",
    target="warehouse:raw.orders",
    key="id",
    cursor="updated_at",
)
def orders(df: DataFrame) -> DataFrame:
    """Leave test orders out, hash the e-mail, and make columns of the JSON address."""
    total = (f.col("quantity") * f.col("price")).cast("decimal(12,2)")
    return (
        df.where("status <> 'test'")
        .withColumn("email", f.sha2("email", 256))
        .withColumn("country", f.get_json_object("address", "$.country"))
        .withColumn("total", total)
        .drop("address")
    )
