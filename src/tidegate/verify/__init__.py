"""Is the target right: compare, repair, backfill, explain a row."""
