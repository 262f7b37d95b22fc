"""Use cases: a load, a sync, its plan, its verification."""
