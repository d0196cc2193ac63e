"""Stage-wise evaluation of agent runs, live or recorded, with milestone graphs and tiered judges (DynSTEER).

Needs the extra ``stagewise``; a model as a judge or as a planner of graphs needs ``judges`` too.
"""

from stepsieve.data.errors import require


def check_installed() -> None:
    """Raises DataError where the extra is not installed."""
    for module in ("networkx", "jsonschema"):
        require(module, "stagewise")
