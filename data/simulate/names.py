"""People, accounts and filler fields of the simulated worlds."""

from __future__ import annotations

import random
from typing import Any

from stepsieve.data.simulate.surface import fresh_ids

_FIRST = (
    "Adela",
    "Bruno",
    "Cosima",
    "Dario",
    "Elin",
    "Fabian",
    "Greta",
    "Hamid",
    "Ilse",
    "Jonas",
    "Kaja",
    "Leander",
    "Mirela",
    "Nils",
    "Oona",
    "Pavel",
    "Runa",
    "Stellan",
    "Tamsin",
    "Ugo",
    "Vesna",
    "Wim",
    "Yannis",
    "Zora",
)
_LAST = (
    "Abrantes",
    "Bergqvist",
    "Corvi",
    "Dragan",
    "Ekholm",
    "Faure",
    "Grimm",
    "Holub",
    "Ivarsen",
    "Jelic",
    "Kranz",
    "Lorca",
    "Mandl",
    "Novotny",
    "Ost",
    "Petrak",
    "Quist",
    "Rademaker",
    "Sorel",
    "Thorn",
    "Ulrich",
    "Vanek",
)
_FILLER = {
    "opened": ("2024-02-11", "2027-09-30", "2029-12-01"),
    "remark": ("", "prefers letters", "moved twice", "calls often"),
    "language": ("en", "de", "fr", "pl"),
    "channel": ("web", "phone", "counter"),
    "currency": ("EUR", "CHF", "NOK", "GBP"),
    "branch": ("north", "harbour", "old town"),
    "points": (0, 40, 1250, 7800),
    "marketing": (True, False),
    "last_contact": ("2030-11-04", "2031-01-19"),
    "checked_by": ("m.k.", "auto", "desk 4"),
    "weight_kg": (0.4, 2.5, 11),
}


def person(rng: random.Random) -> str:
    """A first and a last name."""
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def noise(rng: random.Random) -> dict[str, Any]:
    """A few fields that decide nothing, as real records have."""
    return {key: rng.choice(_FILLER[key]) for key in rng.sample(sorted(_FILLER), rng.randint(0, 6))}


def account_record(rng: random.Random, key: str, name: str, kind: str, objects: list[str]) -> dict[str, Any]:
    """An account that lists its objects under ``kind`` and has one to four ways to pay."""
    wallet = [
        {"id": item, "kind": rng.choice(("card", "voucher", "transfer", "credit note")), "left": rng.randint(5, 400)}
        for item in fresh_ids(rng, rng.randint(1, 4), 4)
    ]
    first, last = name.lower().split()
    return {
        "id": key,
        "name": name,
        "email": f"{first}.{last}{rng.randint(1, 99)}@{rng.choice(('post', 'mail', 'box'))}.example",
        "phone": f"0{rng.randint(20, 79)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}",
        "postcode": str(rng.randint(10000, 99999)),
        **noise(rng),
        "wallet": wallet,
        kind: list(objects),
    }
