"""Raw events become facts, in three phases that commit one after the other."""
