"""A shop for musical instruments: orders that can be returned, swapped, cancelled or sent elsewhere."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from stepsieve.data.simulate.agent import calculate, find_account, find_by_name, hand_off, open_record
from stepsieve.data.simulate.names import account_record, noise, person
from stepsieve.data.simulate.surface import fresh_ids
from stepsieve.data.simulate.world import RULE, Answer, Task, Tool, World

PRODUCTS = (
    "accordion",
    "banjo",
    "cello",
    "drum pad",
    "euphonium",
    "flute",
    "glockenspiel",
    "harmonica",
    "kalimba",
    "lute",
    "mandolin",
    "oboe",
    "piccolo",
    "recorder",
    "sitar",
    "tambourine",
    "ukulele",
    "viola",
    "zither",
)
FINISHES = ("oak", "walnut", "black", "silver", "red", "natural", "brass")
SIZES = ("small", "half", "full", "grand")
STREETS = ("Kiln Lane 4", "Hafenweg 12", "Rue du Puits 9", "Mill Road 77", "Torvet 3", "Via Scala 21")

POLICY = """Shop rules.
Identify the customer before anything else; never guess an account number.
Open only what the request is about. Only delivered orders can be returned or swapped, only open ones cancelled or sent
elsewhere. Money goes back to what was paid with. Used articles are passed on to a specialist; nothing else is.
Do plain sums yourself; the calculator is for currencies. Say what will change and get a yes before you change it."""


def _product_of(world: World, sku: str) -> str:
    return next(key for key, record in world.records.items() if sku in record.get("variants", {}))


def _progress(world: World, args: Mapping[str, Any]) -> Answer:
    """order.get.state: the part of an order that tells where it is."""
    return world.show(args["id"], "id", "status", "address")


def _refund(world: World, args: Mapping[str, Any]) -> Answer:
    """order.get.refund: what an order would pay back and where to; order and account hold both."""
    order = world.records.get(args["id"])
    if order is None:
        return world.show(args["id"])
    entry: dict[str, Any] = next(
        (item for item in world.records[order["account"]]["wallet"] if item["id"] == order["pay"]), {}
    )
    reads = world.facts(args["id"], "amount", "pay") | world.facts(order["account"], "wallet")
    return Answer({"id": args["id"], "amount": order["amount"], "pay": entry}, reads)


def _catalogue(world: World, args: Mapping[str, Any]) -> Answer:
    """product.list: every article's id."""
    found = {record["name"]: key for key, record in world.records.items() if "variants" in record}
    return Answer(found, frozenset((key, "name") for key in found.values()))


def _guard(world: World, key: str, *states: str) -> Answer | None:
    order = world.records.get(key)
    if order is None:
        return world.show(key)
    if order["status"] not in states:
        return Answer(f"not possible, the order is {order['status']}", failure="permanent", breach=(key, "status"))
    return None


def _paid(world: World, args: Mapping[str, Any]) -> Answer | None:
    if args["pay"] != world.records[args["id"]]["pay"]:
        return Answer("money goes back to what was paid with", failure="permanent", breach=RULE)
    return None


def _give_back(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _guard(world, args["id"], "delivered", "return under way") or _paid(world, args)
    if refused is None and any(world.records.get(f"check:{sku}", {}).get("used") for sku in args["items"]):
        # Only the workshop knows, so that nobody could have told before.
        refused = Answer("the workshop marks this article as used", failure="permanent", breach=("workshop", "used"))
    return refused or world.update(args["id"], status="return under way", returned=list(args["items"]))


def _swap(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _guard(world, args["id"], "delivered", "swap under way") or _paid(world, args)
    if refused is None:
        product = _product_of(world, args["old"])
        new = world.records[product]["variants"].get(args["new"])
        if new is None or not new["stock"]:
            refused = Answer("that variant can't be had", failure="permanent", breach=(product, "variants"))
    return refused or world.update(args["id"], status="swap under way", swapped=[args["old"], args["new"]])


def _cancel(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _guard(world, args["id"], "open", "cancelled")
    return refused or world.update(args["id"], status="cancelled")


def _readdress(world: World, args: Mapping[str, Any]) -> Answer:
    refused = _guard(world, args["id"], "open")
    return refused or world.update(args["id"], address=args["address"])


TOOLS: dict[str, Tool] = {
    "account.find.email": find_account,
    "account.find.name": find_by_name,
    "account.get": open_record,
    "order.get": open_record,
    "order.get.state": _progress,
    "order.get.refund": _refund,
    "product.get": open_record,
    "product.list": _catalogue,
    "order.return": _give_back,
    "order.swap": _swap,
    "order.cancel": _cancel,
    "order.change.address": _readdress,
    "handoff.make": hand_off,
    "sum.run": calculate,
}


def build(rng: random.Random, task_id: str) -> tuple[World, Task]:
    """A fresh world and a task in it."""
    who = person(rng)
    account, *rest = fresh_ids(rng, 9, rng.choice((0, 1, 2, 3)))
    count = rng.choice((2, 3, 3, 4, 4, 5, 6, 7, 8))
    orders = rest[:count]
    record = account_record(rng, account, who, "orders", orders)
    desk = {"handed_off": False, "needed": False}
    world = World({account: record, "desk": desk, "workshop": {"used": True}}, brief=rng.random() < 0.35)
    names = rng.sample(PRODUCTS, len(PRODUCTS))
    for key in orders:
        lines = [_line(rng, world, names.pop()) for _ in range(rng.choice((1, 2, 2)))]
        world.records[key] = {
            "id": key,
            "account": account,
            "lines": lines,
            "status": rng.choice(("open", "delivered", "delivered")),
            "address": rng.choice(STREETS),
            "amount": sum(line["amount"] for line in lines),
            "pay": rng.choice(record["wallet"])["id"],
            "date": f"2031-0{rng.randint(1, 6)}-{rng.randint(10, 28)}",
            **noise(rng),
        }
    kind = rng.choice(("return", "return", "swap", "swap", "swap", "cancel", "address", "refused", "overview"))
    targets = rng.sample(orders, 2 if kind in ("return", "cancel") and count > 2 and rng.random() < 0.25 else 1)
    return world, _task(rng, world, task_id, kind, account, targets, orders)


def _line(rng: random.Random, world: World, name: str) -> dict[str, Any]:
    """An order line, and the article that it is a variant of."""
    product, *skus = fresh_ids(rng, rng.randint(4, 9), 3)
    variants = {
        sku: {
            "finish": rng.choice(FINISHES),
            "size": rng.choice(SIZES),
            "amount": rng.randint(20, 800),
            "stock": rng.random() < 0.7,
        }
        for sku in skus
    }
    world.records[product] = {"id": product, "name": name, "variants": variants}
    sku = rng.choice(skus)
    chosen = variants[sku]
    return {
        "item": sku,
        "product": product,
        "name": name,
        "finish": chosen["finish"],
        "size": chosen["size"],
        "amount": chosen["amount"],
    }


def _task(
    rng: random.Random, world: World, task_id: str, kind: str, account: str, targets: list[str], orders: list[str]
) -> Task:
    needs = {"return": "delivered", "swap": "delivered", "refused": "delivered", "cancel": "open", "address": "open"}
    for key in targets if kind in needs else ():
        world.records[key]["status"] = needs[kind]
    facts: dict[str, Any] = {
        "account": account,
        "targets": targets,
        "orders": orders,
        "email_given": rng.random() < 0.4,
        "known": rng.choices(("described", "named", "asked", "listed"), (0.68, 0.08, 0.09, 0.15))[0],
        "stale": rng.random() < 0.07,
    }
    truth = {"order": frozenset(targets), "account": frozenset([account]), "topic": frozenset([kind])}
    lines = [line for key in targets for line in world.records[key]["lines"]]
    truth["product"] = frozenset(line["product"] for line in lines)
    keys = {(account, "id"): ("account", account)}
    if facts["known"] == "listed":
        truth["order"] = frozenset(orders)
    if facts["known"] in ("described", "listed"):
        keys.update({(target, "lines"): ("order", target) for target in truth["order"]})
    goal: list[tuple[str, str, Any]] = []
    if kind == "return":
        facts["items"] = {
            key: [line["item"] for line in world.records[key]["lines"]][: rng.randint(1, 2)] for key in targets
        }
        goal = [(key, "returned", items) for key, items in facts["items"].items()]
    elif kind == "refused":
        facts["items"] = {targets[0]: [lines[0]["item"]]}
        world.records[f"check:{lines[0]['item']}"] = {"used": True}
        world.records["desk"]["needed"] = True
        goal = [("desk", "handed_off", True)]
    elif kind == "cancel":
        goal = [(key, "status", "cancelled") for key in targets]
    elif kind == "address":
        facts["address"] = rng.choice([street for street in STREETS if street != world.records[targets[0]]["address"]])
        goal = [(targets[0], "address", facts["address"])]
    elif kind == "overview":
        truth["order"] = frozenset(orders)
        facts.update(known="listed")
    else:
        _plan_swap(rng, world, lines, facts, truth)
        goal = [(targets[0], "swapped", [facts["old"], facts["new"]])]
    return Task(task_id, kind, tuple(goal), truth, keys, identifiers=frozenset(["account"]), facts=facts)


def _plan_swap(
    rng: random.Random,
    world: World,
    lines: list[dict[str, Any]],
    facts: dict[str, Any],
    truth: dict[str, frozenset[str]],
) -> None:
    """Which line is swapped for what. ``drops``: the user asks for two swaps and drops one.

    ``asks``: the user wants to know the variants of both before choosing.
    """
    line = rng.choice(lines)
    variants = world.records[line["product"]]["variants"]
    new = rng.choice([sku for sku in variants if sku != line["item"]])
    variants[new]["stock"] = True
    facts.update(old=line["item"], new=new, product=line["product"], name=line["name"])
    truth["product"] = frozenset([line["product"]])
    facts["other"] = next((item for item in lines if item is not line), None)
    facts["drops"] = facts["other"] is not None and rng.random() < 0.35
    facts["asks"] = facts["other"] is not None and not facts["drops"] and rng.random() < 0.5
    if facts["asks"]:
        truth["product"] |= {facts["other"]["product"]}
