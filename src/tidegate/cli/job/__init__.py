"""Commands about jobs, workers and schedules."""
