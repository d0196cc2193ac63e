"""Scorers and what wraps them. Knows data/, not train/ or eval/."""
