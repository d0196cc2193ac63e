"""One YAML per script; every key is commented."""
