"""Measurements against a floor and against other ways to do the same work, all in one run."""
