"""Changes from the log: `changes = "cdc"`."""
