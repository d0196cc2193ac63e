"""The one training loop, the tasks, and one short script per task."""
