"""What Tidegate keeps in the control database: jobs, attempts, locks, workers."""
