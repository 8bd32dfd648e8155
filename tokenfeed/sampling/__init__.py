"""Which tokens each sample has: orders, the plan, and the spans that it returns."""
