"""`tidegate doctor`: what could go wrong here, before it does."""
