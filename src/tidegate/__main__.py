"""`python -m tidegate` is the same as `tidegate`."""

from tidegate.cli.main import main

main()
