"""How agent and user go about the tasks of the shop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsieve.data.simulate.agent import Agent
from stepsieve.data.simulate.session import Session

_WANT = {
    "return": "I'd like to return {it}.",
    "refused": "I'd like to return {it}.",
    "cancel": "Please cancel {it}.",
    "address": "Please send {it} to {address} instead.",
    "swap": "I want to swap {it} for another finish or size.",
    "question": "What could I get instead of {it}? I'll swap one of them.",
    "overview": "Tell me, please, what all my orders came to.",
}


def play(session: Session) -> None:
    """The agent's plan for each kind of task."""
    task, world = session.task, session.world
    facts = task.facts
    account = world.records[facts["account"]]
    agent = Agent(session, account["name"])
    _open(agent, account)
    agent.identify(facts["account"], facts["email_given"], facts["stale"])
    if task.kind == "overview":
        agent.look("order.get", "order", facts["orders"], len(facts["orders"]))
        agent.needless([" + ".join(str(world.records[key]["amount"]) for key in facts["orders"])], "overview given")
        agent.close(f"{sum(world.records[key]['amount'] for key in facts['orders'])} in all.")
        return
    others = [key for key in facts["orders"] if key not in facts["targets"]]
    agent.find("order.get", "order", facts["targets"], others, facts["known"])
    if session.flaws.recheck_at and agent.rng.random() < 0.35:
        session.attempt(agent.rng.choice(("order.get.state", "order.get.refund")), {"id": facts["targets"][0]})
    _PLANS.get(task.kind, _settle)(agent)


def _open(agent: Agent, account: Mapping[str, Any]) -> None:
    task, records = agent.session.task, agent.session.world.records
    facts = task.facts
    told = [("topic", task.kind)]
    parts = []
    for key in facts["targets"]:
        names = [line["name"] for line in records[key]["lines"]]
        if facts["known"] == "named":
            told.append(("order", key))
            parts.append(f"order {key}")
        elif facts["known"] == "listed":
            parts.append("something from my orders, read them to me first,")
        elif facts["known"] == "asked":
            parts.append("something I ordered")
        elif task.kind == "swap" and not (facts["drops"] or facts["asks"]):
            parts.append(f"the {facts['name']}")
        else:
            parts.append("the " + " and the ".join(names))
    if task.kind == "swap" and not facts["drops"] and facts["known"] == "described":
        told += [("product", key) for key in task.truth["product"]]
    want = _WANT["question" if facts.get("asks") else task.kind].format(
        it=" and ".join(parts), address=facts.get("address")
    )
    if facts["email_given"]:
        want += f" You have me under {agent.address(account, facts['stale'])}."
    agent.open(want, *told)


def _mistakes(agent: Agent, tool: str, key: str, **fields: Any) -> None:
    """Writes that what is known rules out: on another order, of which the state is known, or with a wrong number."""
    session = agent.session
    known = {step.arguments["id"] for step in session.steps if step.tool == "order.get" and not step.answer.failure}
    others = [item for item in session.task.facts["orders"] if item in known - set(session.task.facts["targets"])]
    closed = [item for item in others if session.world.records[item]["status"] != session.world.records[key]["status"]]
    while session.flaws.wrong and agent.rng.random() < 0.2 and session.flaws.take("wrong", 1):
        if closed and agent.rng.random() < 0.5:
            session.call(tool, {"id": closed[0], **fields}, {"order": closed[0]})
        else:
            wrong = key[1:] if key.startswith("#") else key[:-1]
            session.call(tool, {"id": wrong, **fields}, {"order": wrong})


def _settle(agent: Agent) -> None:
    """Returns, cancellations and new addresses."""
    session, facts = agent.session, agent.session.task.facts
    kind, records = session.task.kind, session.world.records
    plans = {"return": "I'd take it back.", "cancel": "I'd cancel it."}
    agent.confirm(", ".join(facts["targets"]), plans.get(kind, "I'd send it elsewhere."), facts["targets"])
    for key in facts["targets"]:
        if kind == "return":
            fields = {"items": facts["items"][key], "pay": records[key]["pay"]}
            wallet = [item["id"] for item in records[facts["account"]]["wallet"] if item["id"] != fields["pay"]]
            _mistakes(agent, "order.return", key, **fields)
            if wallet and session.flaws.wrong and agent.rng.random() < 0.2 and session.flaws.take("wrong", 1):
                session.call("order.return", {"id": key, **fields, "pay": wallet[0]})
            session.call("order.return", {"id": key, **fields})
        elif kind == "cancel":
            _mistakes(agent, "order.cancel", key)
            session.call("order.cancel", {"id": key})
        else:
            _mistakes(agent, "order.change.address", key, address=facts["address"])
            session.call("order.change.address", {"id": key, "address": facts["address"]})
        if session.flaws.verifies and session.world.brief:
            session.call("order.get", {"id": key}, {"order": key})
    agent.needless([" + ".join(str(records[key]["amount"]) for key in facts["targets"])], "all settled")
    agent.close(f"{', '.join(facts['targets'])}: {records[facts['targets'][0]]['status']}.")


def _refuse(agent: Agent) -> None:
    session, facts = agent.session, agent.session.task.facts
    key = facts["targets"][0]
    agent.confirm(key, "I'd take it back.", [key])
    session.call("order.return", {"id": key, "items": facts["items"][key], "pay": session.world.records[key]["pay"]})
    agent.hand_off(key, "the workshop marks it as used", f"{facts['account']}: return of {key} refused by the workshop")
    agent.close(f"a specialist will write to you about {key}.")


def _product(agent: Agent, key: str) -> None:
    agent.session.call("product.get", {"id": key}, {"product": key})


def _exchange(agent: Agent) -> None:
    session, facts = agent.session, agent.session.task.facts
    key, records = facts["targets"][0], session.world.records
    both = [facts["product"]]
    if (
        facts["asks"]
        or (facts["drops"] and session.flaws.take("explore", 1))
        or (facts["other"] and agent.rng.random() < 0.4 and session.flaws.take("wrong", 1))
    ):
        both.append(facts["other"]["product"])
    agent.rng.shuffle(both)
    for product in both:
        _product(agent, product)
    _strangers(agent)
    new = records[facts["product"]]["variants"][facts["new"]]
    if facts["asks"]:
        agent.say(
            ("For the {it} there is: {that}.",),
            it=facts["other"]["name"],
            that=_variants(agent, facts["other"]["product"]),
        )
        agent.hear(("Good to know. I'll keep that one.", "Then not that one."))
    agent.say(("There are several variants of the {it}. Which one do you want?",), it=facts["name"])
    keep = " Leave the rest as it is." if facts["drops"] else ""
    agent.hear(
        ("The {it} in {finish}, {size}, please.{keep}", "Make it {finish} and {size} for the {it}.{keep}"),
        ("product", facts["product"]),
        it=facts["name"],
        finish=new["finish"],
        size=new["size"],
        keep=keep,
    )
    pay = records[key]["pay"]
    agent.confirm(key, f"I'd swap {facts['old']} for {facts['new']}.", [key])
    fields = {"old": facts["old"], "new": facts["new"], "pay": pay}
    gone = [sku for sku, item in records[facts["product"]]["variants"].items() if not item["stock"]]
    if gone and session.flaws.wrong and agent.rng.random() < 0.2 and session.flaws.take("wrong", 1):
        session.call("order.swap", {"id": key, **fields, "new": gone[0]})
    _mistakes(agent, "order.swap", key, **fields)
    session.call("order.swap", {"id": key, **fields})
    if session.flaws.verifies and session.world.brief:
        session.call("order.get", {"id": key}, {"order": key})
    agent.needless([f"{new['amount']} - 20"], f"{key} swapped")
    agent.close(f"the {facts['name']} of {key} is being swapped.")


def _variants(agent: Agent, product: str) -> str:
    variants = agent.session.world.records[product]["variants"]
    return "; ".join(f"{sku} {item['finish']} {item['size']} {item['amount']}" for sku, item in variants.items())


def _strangers(agent: Agent) -> None:
    """Articles of orders that were opened on the way and that nobody asked about."""
    session, facts = agent.session, agent.session.task.facts
    if facts["drops"] or facts["known"] != "described":
        return
    seen = [step.arguments["id"] for step in session.steps if step.tool == "order.get" and not step.answer.failure]
    beside = [key for key in dict.fromkeys(seen) if key not in facts["targets"]]
    products = [line["product"] for key in beside for line in session.world.records[key]["lines"]]
    for product in products[: session.flaws.take("wrong", min(len(products), 1))] if agent.rng.random() < 0.2 else ():
        _product(agent, product)


_PLANS = {"swap": _exchange, "refused": _refuse}
