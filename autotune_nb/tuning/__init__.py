"""Tuning: tasks, search, workers, measurement and the tuner process."""
