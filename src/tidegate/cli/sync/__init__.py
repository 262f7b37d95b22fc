"""Commands about syncs: run, plan, verify and the rest."""
