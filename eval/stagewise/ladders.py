"""The ladders of judges that the commands know by name."""

from __future__ import annotations

from stepsieve.eval.stagewise.judges import Ladder, StructuralJudge
from stepsieve.eval.stagewise.llm import Endpoint
from stepsieve.eval.stagewise.llm_judges import ExpensiveJudge, StandardJudge
from stepsieve.eval.stagewise.settings import Settings


def ladder_of(name: str, settings: Settings) -> tuple[Ladder, Endpoint | None]:
    """tier1, tier12 or llm, and the endpoint that it asks; None where it asks none.

    Raises:
        DataError: the endpoint's settings lack what is needed.
    """
    if name == "tier1":
        return Ladder(StructuralJudge()), None
    endpoint = Endpoint(settings.endpoint)
    expensive = ExpensiveJudge(endpoint) if name == "llm" else None
    return Ladder(StructuralJudge(), StandardJudge(endpoint), expensive), endpoint
