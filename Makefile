.DEFAULT_GOAL := help
.PHONY: help setup demo check test docs chaos bench clean

# Java found outside PATH is noted by the set-up; Spark reads JAVA_HOME.
java = [ -n "$$JAVA_HOME" ] || [ ! -s .venv/java-home ] || export JAVA_HOME="$$(cat .venv/java-home)";

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

setup: ## Install everything into .venv; quick when nothing changed
	@sh scripts/setup

demo: setup ## Set up, then see a sync survive being killed
	@$(java) .venv/bin/tidegate demo

check: setup ## Formatting, rules, types, the direction of imports, and the tests of units
	@$(java) .venv/bin/python tests/suite.py check

test: setup ## Set up, check and run the tests
	@$(java) .venv/bin/python tests/suite.py test

docs: setup ## Build the documentation as a site in build/docs
	@.venv/bin/mkdocs build --strict --quiet
	@echo "build/docs/index.html; to search it too: .venv/bin/mkdocs serve"

chaos: setup ## The long reliability runs; PART, MINUTES and SEED are optional
	@$(java) .venv/bin/python tests/chaos.py $(if $(PART),--part $(PART)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

bench: setup ## Measure against the floor and the alternatives
	@$(java) .venv/bin/python -m benchmarks

clean: ## Remove build output and caches
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
