"""Tasks: parameters, requirements, graphs, and Luigi."""
