"""Jobs: queue, attempts, workers, schedules, history, notices."""
