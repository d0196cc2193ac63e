"""Structured features."""
