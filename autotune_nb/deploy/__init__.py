"""Compile with the best schedules found, evaluate, compare with baselines."""
