"""Trajectories in, examples out. Knows nothing of models."""
