"""Settings of the property tests: the same examples on every run, more of them on request."""

from __future__ import annotations

import hypothesis

# Deadlines measure the machine, not the code. `pytest --hypothesis-profile thorough` for a long search.
hypothesis.settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("thorough", max_examples=2000, deadline=None)
hypothesis.settings.load_profile("quick")
