"""The built-in simulator."""
