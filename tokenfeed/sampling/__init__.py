"""The tokens of each sample: orders, the plan, and the spans that it returns."""
