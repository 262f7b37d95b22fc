"""Orders without addresses: one row in, one row out, the same whenever it is computed."""

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
    """Hash the e-mail, compute the total, mark test orders."""
    return (
        df.withColumn("email", f.sha2("email", 256))
        .withColumn("total", (f.col("quantity") * f.col("price")).cast("decimal(12,2)"))
        .withColumn("is_test", f.col("status") == "test")
    )
