# One-liners; CI calls the same.
.PHONY: proto proto-check check test proof adapters bench image release
PYTHON ?= .venv/bin/python

proto:        ; proto/generate.sh
proto-check:  ; proto/generate.sh --check
check:        ; $(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check . && $(PYTHON) -m mypy
test:         ; $(PYTHON) -m pytest
# All tests and the long forms of them, with servers that are started as users start them.
proof:        ; TOKENFEED_TEST_COLD=1 $(PYTHON) -m pytest -m 'proof or not proof' && $(PYTHON) -m tests.faults --long --share 0.3
# The adapters, each against its framework in an environment of its own: tests/adapters/.
adapters:     ; $(PYTHON) -m tests.adapters
bench:        ; for name in plan_rows gather delivered round_trip many_clients shards many_streams cold_read warm_up gpu_loop; do $(PYTHON) -m benchmarks.$$name || exit 1; done
image:        ; for name in server ingest trainer; do docker build --file deploy/Dockerfile --target $$name --tag tokenfeed-$$name . || exit 1; done
# Packages, images, and lists of what they hold, all checked. Publishes nothing.
release:      ; .ci/release
