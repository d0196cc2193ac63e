"""Metrics, benchmark reports, corpus prediction."""
