"""A travel desk: rail and ferry trips that can be moved, upgraded, cancelled, and offers to move them to."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stepsieve.data.simulate.agent import calculate, find_account, find_by_name, hand_off, open_record
from stepsieve.data.simulate.names import account_record, noise, person
from stepsieve.data.simulate.surface import fresh_ids
from stepsieve.data.simulate.world import RULE, Answer, Task, Tool, World

PLACES = (
    "Arvik",
    "Brenholt",
    "Castelmora",
    "Dunmere",
    "Eskdal",
    "Fjellby",
    "Grauburg",
    "Halvena",
    "Istra Nova",
    "Jorvale",
    "Kestrel Bay",
    "Lunde",
    "Morcombe",
    "Nidaro",
    "Ostrava Quay",
    "Pellworm",
    "Quillan",
    "Rosendal",
)
KINDS = ("cancel", "cancel", "move", "move", "move", "class", "luggage", "refused", "overview", "both", "complaint")
CLASSES = ("seat", "couchette", "cabin", "suite")

POLICY = """Travel desk rules.
Open the account of whoever calls before you change anything; never guess an account number.
Open only what the request is about. Ask when it is unclear which trip is meant.
A trip that has begun or is cancelled can't be changed. A trip on a fixed fare can't be cancelled or moved: pass it on.
Money goes back to what was paid with, never elsewhere. Do plain sums yourself; the calculator is for currencies.
Pass a case on only when these rules leave nothing else. Before a change, say what will change and get a yes."""


def _offer_key(args: Mapping[str, Any]) -> str:
    return f"offers:{args['from']}:{args['to']}:{args['date']}"


def _offers(world: World, args: Mapping[str, Any]) -> Answer:
    """offers.list: the services of one day; an empty list where none has room."""
    key = _offer_key(args)
    found = world.records.get(key, {}).get("free", [])
    return Answer(list(found), frozenset([(key, "free")]))


def _through(world: World, args: Mapping[str, Any]) -> Answer:
    """offers.find.via: the services of one day with a change on the way."""
    key = _offer_key(args)
    found = world.records.get(key, {}).get("via", [])
    return Answer(list(found), frozenset([(key, "via")]))


def _legs(world: World, args: Mapping[str, Any]) -> Answer:
    """trip.get.legs: the route part of a trip, which the trip itself holds too."""
    return world.show(args["id"], "id", "from", "to", "date", "service")


def _refund(world: World, args: Mapping[str, Any]) -> Answer:
    """trip.get.refund: what a trip's cancellation pays back and where to; trip and account hold both."""
    trip = world.records.get(args["id"])
    if trip is None:
        return world.show(args["id"])
    reads = world.facts(args["id"], "amount", "pay", "fare") | world.facts(trip["account"], "wallet")
    entry: dict[str, Any] = next(
        (item for item in world.records[trip["account"]]["wallet"] if item["id"] == trip["pay"]), {}
    )
    return Answer({"id": args["id"], "amount": trip["amount"], "pay": entry, "fare": trip["fare"]}, reads)


def _state(world: World, args: Mapping[str, Any]) -> Answer:
    """state.get: whether a service runs on time."""
    key = f"service:{args['service']}:{args['date']}"
    return Answer({"service": args["service"], "status": "as planned"}, frozenset([(key, "status")]))


def _open_for_change(world: World, key: str) -> Answer | None:
    trip = world.records.get(key)
    if trip is None:
        return world.show(key)
    if trip["status"] != "booked":
        return Answer(f"trip {key} is {trip['status']}", failure="permanent", breach=(key, "status"))
    return None


def _cancel(world: World, args: Mapping[str, Any]) -> Answer:
    key = args["id"]
    trip = world.records.get(key, {})
    if trip.get("status") == "cancelled":
        return world.update(key, status="cancelled")
    refused = _open_for_change(world, key)
    if refused is None and trip["fare"] == "fixed":
        refused = Answer("fixed fares can't be cancelled", failure="permanent", breach=(key, "fare"))
    return refused or world.update(key, status="cancelled")


def _paid(world: World, key: str, pay: str) -> Answer | None:
    wallet = world.records[world.records[key]["account"]]["wallet"]
    if pay not in [item["id"] for item in wallet]:
        return Answer(
            f"{pay} is not in the wallet", failure="permanent", breach=(world.records[key]["account"], "wallet")
        )
    if pay != world.records[key]["pay"]:
        return Answer("charges go to what the trip was paid with", failure="permanent", breach=RULE)
    return None


def _move(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _open_for_change(world, args["id"]) or _paid(world, args["id"], args["pay"])
    return refused or world.update(args["id"], date=args["date"], service=args["service"])


def _upgrade(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _open_for_change(world, args["id"]) or _paid(world, args["id"], args["pay"])
    return refused or world.update(args["id"], **{"class": args["class"]})


def _luggage(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _open_for_change(world, args["id"])
    return refused or world.update(args["id"], pieces=args["pieces"])


TOOLS: dict[str, Tool] = {
    "account.find.email": find_account,
    "account.find.name": find_by_name,
    "account.get": open_record,
    "trip.get": open_record,
    "trip.get.legs": _legs,
    "trip.get.refund": _refund,
    "offers.list": _offers,
    "offers.find.via": _through,
    "state.get": _state,
    "trip.cancel": _cancel,
    "trip.change.date": _move,
    "trip.change.class": _upgrade,
    "trip.change.luggage": _luggage,
    "handoff.make": hand_off,
    "sum.run": calculate,
}


def build(rng: random.Random, task_id: str) -> tuple[World, Task]:
    """A fresh world and a task in it."""
    who = person(rng)
    account = fresh_ids(rng, 1)[0]
    count = rng.choice((2, 3, 4, 4, 5, 5, 6, 7, 8, 9, 10, 12))
    style = rng.randrange(4)
    trips = [key for key in fresh_ids(rng, count + 1, style) if key != account][:count]
    record = account_record(rng, account, who, "trips", trips)
    world = World({account: record, "desk": {"handed_off": False, "needed": False}}, brief=rng.random() < 0.35)
    for key in trips:
        start, end = rng.sample(PLACES, 2)
        world.records[key] = {
            "id": key,
            "account": account,
            "from": start,
            "to": end,
            "date": f"2031-0{rng.randint(3, 8)}-{rng.randint(10, 27)}",
            "service": f"{rng.choice('ABFR')}{rng.randint(100, 999)}",
            "class": rng.choice(CLASSES[:3]),
            "fare": "flex",
            "status": "booked",
            "amount": rng.randint(40, 900),
            "pay": rng.choice(record["wallet"])["id"],
            "pieces": rng.randint(0, 2),
            **noise(rng),
        }
    kind = rng.choice(KINDS)
    targets = rng.sample(trips, 2 if kind == "both" and count > 2 else 1)
    return world, _task(rng, world, task_id, kind, account, targets, trips)


def _task(
    rng: random.Random, world: World, task_id: str, kind: str, account: str, targets: list[str], trips: list[str]
) -> Task:
    key = targets[0]
    trip = world.records[key]
    facts: dict[str, Any] = {
        "account": account,
        "targets": targets,
        "trips": trips,
        "known": rng.choices(("described", "named", "asked", "listed"), (0.68, 0.08, 0.09, 0.15))[0],
        "stale": rng.random() < 0.07,
        "email_given": rng.random() < 0.4,
    }
    truth = {"trip": frozenset(targets), "account": frozenset([account]), "topic": frozenset([kind])}
    keys = {(account, "id"): ("account", account)}
    if facts["known"] == "listed":
        truth["trip"] = frozenset(trips)
    if facts["known"] in ("described", "listed"):
        keys.update({(target, "from"): ("trip", target) for target in truth["trip"]})
    goal: list[tuple[str, str, Any]] = []
    if kind in ("cancel", "both"):
        goal = [(target, "status", "cancelled") for target in targets]
    elif kind == "class":
        facts["class"] = CLASSES[CLASSES.index(trip["class"]) + 1]
        goal = [(key, "class", facts["class"])]
    elif kind == "luggage":
        facts["pieces"] = trip["pieces"] + rng.randint(1, 3)
        goal = [(key, "pieces", facts["pieces"])]
    elif kind == "refused":
        trip["fare"] = "fixed"
        world.records["desk"]["needed"] = True
        goal = [("desk", "handed_off", True), (key, "status", "booked")]
    elif kind == "complaint":
        world.records["desk"]["needed"] = True
        goal = [("desk", "handed_off", True)]
        truth.update(trip=frozenset(trips), topic=frozenset(["complaint", "delay"]))
        facts["known"] = "listed"
    elif kind == "overview":
        truth["trip"] = frozenset(trips)
        facts.update(known="listed")
    else:
        _plan_move(rng, world, key, facts, truth, keys)
        goal = [(key, "date", facts["date"]), (key, "service", facts["service"])]
    return Task(task_id, kind, tuple(goal), truth, keys, identifiers=frozenset(["account"]), facts=facts)


def _plan_move(
    rng: random.Random,
    world: World,
    key: str,
    facts: dict[str, Any],
    truth: dict[str, frozenset[str]],
    keys: dict[tuple[str, str], tuple[str, str]],
) -> None:
    """Days that the user could travel on. How the right one becomes known differs.

    It is said, or the cheapest of some that are said, or has only services with a change; or it is the first with a
    free place, or the user picks it from what the agent finds.
    """
    trip = world.records[key]
    month = trip["date"][:8]
    days = [f"{month}{day:02d}" for day in rng.sample(range(1, 29), 8) if f"{month}{day:02d}" != trip["date"]]
    facts["days"] = days
    facts["date"] = days[0]
    facts["how"] = rng.choice(("said", "compared", "through", "searched", "searched", "picked"))
    facts["compared"] = rng.randint(2, 5) if facts["how"] == "compared" else 1
    truth["date"] = frozenset(days[: facts["compared"]])
    for day in days:
        key_of = _offer_key({"from": trip["from"], "to": trip["to"], "date": day})
        full = facts["how"] == "searched" and day != days[0]
        services = [] if full else [_service(rng) for _ in range(rng.randint(1, 4))]
        via = [dict(item, service="V" + item["service"]) for item in services[:1]]
        if facts["how"] == "through" and day == days[0]:
            services, via = [], services
        world.records[key_of] = {"free": services, "via": via}
        if day == days[0]:
            (services or via)[0]["amount"] = rng.randint(10, 39)  # cheaper than any other
            facts["service"] = (services or via)[0]["service"]
            if facts["how"] == "searched":
                keys[key_of, "free"] = ("date", day)


def _service(rng: random.Random) -> dict[str, Any]:
    return {
        "service": f"{rng.choice('ABFR')}{rng.randint(100, 999)}",
        "leaves": f"{rng.randint(5, 22):02d}:{rng.randint(0, 59):02d}",
        "amount": rng.randint(40, 900),
        "places": rng.randint(1, 40),
    }
