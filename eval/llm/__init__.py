"""Judges that are asked over a network: prompts, replies, endpoints, and what they cost."""
