"""Branch and bound: cells of a region, each with a bound of its own."""
