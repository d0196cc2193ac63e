"""A support line for internet boxes: causes lie in the account, on the box, or both. Users have tools of their own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stepsieve.data.simulate.agent import calculate, hand_off, open_record
from stepsieve.data.simulate.names import account_record, noise, person
from stepsieve.data.simulate.surface import fresh_ids
from stepsieve.data.simulate.world import Answer, Fact, Task, Tool, World

POLICY = """Support rules.
Find the account by the number that the caller gives. One caller can have several sites; work on the one that is meant.
A site that is blocked for an open bill is freed once it is paid: send the bill, wait for the payment, then free it.
A site whose contract has ended can't be freed: pass the case on, and a box with a defective board. Nothing else.
When the monthly volume is used up, offer more volume. When guests can't get on, guest access has to be on for the site.
Everything else is settled on the box, by the caller: ask for its status page first, then for one thing at a time, and
have the caller measure the speed at the end. Do plain sums yourself. Never send a bill that is not due."""

BOX_CAUSES = {
    "radio": ("off", "on", "box.change.radio"),
    "cable": ("loose", "seated", "box.change.cable"),
    "band": ("2.4 only", "automatic", "box.change.band"),
    "saver": ("on", "off", "box.change.saver"),
    "relay": ("on", "off", "box.change.relay"),
    "names": ("broken", "default", "box.change.names"),
}
ON_ACCOUNT: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("check",),
    ("guests",),
    ("volume",),
    ("volume", "guests"),
    ("volume", "check"),
    ("bill",),
    ("ended",),
)
"""What can lie in the account. "check": guest access is on, but the caller's complaint demands to make sure."""
DEFECT = ("board", "defective")
"""A fault that only a specialist can settle."""
HIDDEN = ("relay", "names")
"""What the status page doesn't show, so that it has a check of its own."""
ACCOUNT_CAUSES = ("guests", "volume", "bill", "ended")


def _by_phone(world: World, args: Mapping[str, Any]) -> Answer:
    """account.find.phone: the whole account with a site of that number."""
    for record in list(world.records.values()):
        if record.get("number") == args["phone"]:
            return world.show(record["account"])
    return Answer("no account with that number", failure="permanent")


def _usage(world: World, args: Mapping[str, Any]) -> Answer:
    """usage.get: the month's volume; site and tariff together hold it too. The reset day decides nothing."""
    unit = world.records.get(args["unit"])
    if unit is None:
        return world.show(args["unit"])
    reads = world.facts(args["unit"], "used", "extra") | world.facts(unit["tariff"], "cap")
    payload = {
        "unit": args["unit"],
        "used": unit["used"],
        "cap": world.records[unit["tariff"]]["cap"],
        "extra": unit["extra"],
        "resets": "2031-07-01",
    }
    return Answer(payload, reads)


def _bills(world: World, args: Mapping[str, Any]) -> Answer:
    """bill.list: the bills of an account."""
    found = [key for key, record in world.records.items() if record.get("bill_of") == args["id"]]
    reads = frozenset(fact for key in found for fact in world.facts(key))
    return Answer([dict(world.records[key]) for key in found], reads | {(args["id"], "bills")})


def _send_bill(world: World, args: Mapping[str, Any]) -> Answer:
    """bill.make: asks the caller for the payment of a bill that is due."""
    bill = world.records.get(args["id"])
    if bill is None:
        return world.show(args["id"])
    if bill["status"] == "paid":
        return Answer(f"bill {args['id']} is paid", failure="permanent", breach=(args["id"], "status"))
    return Answer("sent", frozenset([(args["id"], "@sent")]), world.write(args["id"], asked=True))


def _free(world: World, args: Mapping[str, Any]) -> Answer:
    """unit.change.status: frees a blocked site."""
    unit = world.records.get(args["id"])
    if unit is None:
        return world.show(args["id"])
    if unit["status"] == "ended":
        return Answer("the contract has ended", failure="permanent", breach=(args["id"], "status"))
    due = [key for key, record in world.records.items() if record.get("bill_of") and record["status"] == "due"]
    if due:
        return Answer("a bill is still open", failure="permanent", breach=(due[0], "status"))
    return world.update(args["id"], status="active")


def _guests(world: World, args: Mapping[str, Any]) -> Answer:
    """unit.change.guests: turns guest access of a site on."""
    if args["id"] not in world.records:
        return world.show(args["id"])
    return world.update(args["id"], guests=True)


def _more(world: World, args: Mapping[str, Any]) -> Answer:
    """unit.change.volume: sets the extra volume of a site to what the caller buys."""
    if args["id"] not in world.records:
        return world.show(args["id"])
    return world.update(args["id"], extra=args["extra"])


def _page(world: World, args: Mapping[str, Any]) -> Answer:
    """box.get (user): the status page."""
    names = [name for name in world.records["box"] if name not in HIDDEN]
    return Answer({name: world.records["box"][name] for name in names}, world.facts("box", *names))


def _detail(world: World, args: Mapping[str, Any]) -> Answer:
    """box.get.detail (user): one setting that the status page doesn't show."""
    return Answer(f"{args['name']}: {world.records['box'][args['name']]}", world.facts("box", args["name"]))


def _box_change(name: str) -> Tool:
    def change(world: World, args: Mapping[str, Any]) -> Answer:
        """box.change (user): puts one setting right."""
        good = BOX_CAUSES[name][1]
        changed = world.write("box", **{name: good})
        return Answer(f"{name} is now {good}", world.facts("box", name), changed)

    return change


def _pay(world: World, args: Mapping[str, Any]) -> Answer:
    """pay.run (user): pays the bill that was sent."""
    changed = world.write(args["id"], status="paid")
    return Answer(f"paid {args['id']}", frozenset([(args["id"], "status")]), changed)


def _speed(world: World, args: Mapping[str, Any]) -> Answer:
    """test.run (user): good once nothing is wrong any more."""
    goal = world.records["wanted"]["goal"]
    good = all(world.records[key].get(name) == value for key, name, value in goal if key != "desk")
    speed = 180 if good else 2
    return Answer(f"{speed} Mbit/s ({'good' if good else 'bad'})", frozenset([("box", "@speed")]))


TOOLS: dict[str, Tool] = {
    "account.find.phone": _by_phone,
    "unit.get": open_record,
    "tariff.get": open_record,
    "bill.get": open_record,
    "usage.get": _usage,
    "bill.list": _bills,
    "bill.make": _send_bill,
    "unit.change.status": _free,
    "unit.change.guests": _guests,
    "unit.change.volume": _more,
    "handoff.make": hand_off,
    "sum.run": calculate,
    "box.get": _page,
    "box.get.detail": _detail,
    "pay.run": _pay,
    "test.run": _speed,
    **{tool: _box_change(name) for name, (_, _, tool) in BOX_CAUSES.items()},
}


def build(rng: random.Random, task_id: str) -> tuple[World, Task]:
    """A fresh world and a task in it."""
    who = person(rng)
    account, *rest = fresh_ids(rng, 12, rng.choice((0, 2, 3)))
    units = rest[: rng.choice((1, 2, 3, 3, 4, 5))]
    tariffs, bills = rest[5:8], rest[8 : 8 + rng.randint(2, 4)]
    record = account_record(rng, account, who, "units", units)
    record["bills"] = bills
    desk = {"handed_off": False, "needed": False}
    world = World({account: record, "desk": desk, "wanted": {"goal": []}}, brief=rng.random() < 0.35)
    world.records["box"] = {name: good for name, (_, good, _) in BOX_CAUSES.items()} | {
        "battery": "mains",
        "bars": "4 of 5",
        "board": "fine",
    }
    for key in tariffs:
        world.records[key] = {
            "id": key,
            "name": rng.choice(("Home", "Duo", "Flow", "Peak")),
            "cap": rng.choice((50, 80, 200)),
            "fee": rng.randint(15, 60),
            "amount": rng.randint(1, 4),
        }
    for key in units:
        world.records[key] = {
            "id": key,
            "account": account,
            "number": f"0{rng.randint(20, 79)} {rng.randint(100000, 999999)}",
            "status": rng.choice(("active", "active", "active", "blocked")),
            "tariff": rng.choice(tariffs),
            "used": rng.randint(1, 40),
            "extra": 0,
            "guests": True,
            **noise(rng),
        }
    for key in bills:
        world.records[key] = {
            "id": key,
            "bill_of": account,
            "status": "paid",
            "amount": rng.randint(20, 90),
            "date": f"2031-0{rng.randint(1, 6)}-01",
        }
    return world, _task(rng, world, task_id, account, units, tariffs, bills)


def _task(
    rng: random.Random, world: World, task_id: str, account: str, units: list[str], tariffs: list[str], bills: list[str]
) -> Task:
    target = rng.choice(units)
    unit = world.records[target]
    unit["status"] = "active"
    on_account = rng.choice(ON_ACCOUNT)
    on_box = [] if on_account == ("ended",) else rng.sample(sorted(BOX_CAUSES), rng.choice((1, 1, 2, 2, 3, 4, 5, 6)))
    if set(on_account) - {"check"} and on_box and rng.random() < 0.25:
        on_box = []
    defect = bool(on_box) and "bill" not in on_account and rng.random() < 0.15
    goal: list[tuple[str, str, Any]] = [("box", name, BOX_CAUSES[name][1]) for name in on_box]
    keys: dict[Fact, tuple[str, str]] = {}
    for name in on_box:
        world.records["box"][name] = BOX_CAUSES[name][0]
        keys["box", name] = ("cause", name)
    facts: dict[str, Any] = {
        "account": account,
        "target": target,
        "units": units,
        "on_account": on_account,
        "on_box": on_box,
        "number_given": rng.random() < 0.7,
        "defect": defect,
    }
    if defect:
        world.records["box"][DEFECT[0]] = DEFECT[1]
        world.records["desk"]["needed"] = True
        keys["box", DEFECT[0]] = ("cause", DEFECT[0])
        facts["on_box"] = []
        goal = [("desk", "handed_off", True)]
    for cause in on_account:
        goal += _break(rng, world, cause, target, bills, facts, keys)
    keys[target, "number"] = ("unit", target)
    world.records["wanted"]["goal"] = goal
    truth = {
        "cause": frozenset([*on_account, *on_box, *([DEFECT[0]] if defect else [])]),
        "unit": frozenset([target]),
        "account": frozenset([account]),
        "tariff": frozenset([unit["tariff"]]),
    }
    # A site that is active has no open bill, one that has ended needs no other cause.
    state = {
        "active": ("bill", "ended"),
        "blocked": ("volume", "guests", "ended"),
        "ended": ("volume", "guests", "bill"),
    }
    refutes = {(target, "status"): frozenset(("cause", name) for name in state[unit["status"]])}
    return Task(
        task_id, "+".join(sorted(truth["cause"])), tuple(goal), truth, keys, refutes, frozenset(["account"]), facts
    )


def _break(
    rng: random.Random,
    world: World,
    cause: str,
    target: str,
    bills: list[str],
    facts: dict[str, Any],
    keys: dict[Fact, tuple[str, str]],
) -> list[tuple[str, str, Any]]:
    """Put one cause into the account; returns what holds once it is settled."""
    unit = world.records[target]
    if cause == "check":
        keys[target, "guests"] = ("cause", "check")
        return []
    if cause == "guests":
        unit["guests"] = False
        keys[target, "guests"] = ("cause", "guests")
        return [(target, "guests", True)]
    if cause == "volume":
        unit["used"] = world.records[unit["tariff"]]["cap"] + rng.randint(0, 3)
        facts["extra"] = rng.choice((5, 10, 20))
        keys[target, "used"] = ("cause", "volume")
        return [(target, "extra", facts["extra"])]
    keys[target, "status"] = ("cause", cause)
    if cause == "bill":
        unit["status"] = "blocked"
        facts["bill"] = rng.choice(bills)
        world.records[facts["bill"]]["status"] = "due"
        return [(facts["bill"], "status", "paid"), (target, "status", "active")]
    unit["status"] = "ended"
    world.records["desk"]["needed"] = True
    return [("desk", "handed_off", True)]
