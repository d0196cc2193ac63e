"""How agent and user go about the tasks of the travel desk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepsieve.data.simulate.agent import Agent
from stepsieve.data.simulate.session import Session
from stepsieve.data.simulate.world import Answer

_WANT = {
    "cancel": "I want to cancel {it}.",
    "both": "I want to cancel {it}.",
    "class": "Please upgrade {it} by one class.",
    "luggage": "I need more luggage on {it}: {pieces} pieces in all.",
    "refused": "I want my money back for {it}.",
    "complaint": "One of my trips was late by hours and I want something for it. I don't recall which.",
    "overview": "Please go through all my trips and tell me where they start.",
    "move": "I need to move {it}{when}.",
}


def play(session: Session) -> None:
    """The agent's plan for each kind of task."""
    facts, world = session.task.facts, session.world
    account = world.records[facts["account"]]
    agent = Agent(session, account["name"])
    _open(agent, account)
    if facts["known"] != "named" or facts["email_given"] or agent.rng.random() < 0.5:
        agent.identify(facts["account"], facts["email_given"], facts["stale"])
        told_by_trip = False
    else:
        told_by_trip = True
    if session.task.kind == "overview":
        agent.look("trip.get", "trip", facts["trips"], len(facts["trips"]))
        agent.needless([], "overview given")
        agent.close("Your trips start in " + ", ".join(str(world.records[key]["from"]) for key in facts["trips"]) + ".")
        return
    if session.task.kind == "complaint":
        _complain(agent)
        return
    others = [key for key in facts["trips"] if key not in facts["targets"]]
    agent.find("trip.get", "trip", facts["targets"], others, facts["known"])
    if told_by_trip:
        # The trip names its account, so that the way over the address is not needed.
        session.call("account.get", {"id": account["id"]}, {"account": account["id"]})
    _side_looks(agent)
    _PLANS.get(session.task.kind, _cancel_all)(agent)


def _open(agent: Agent, account: Mapping[str, Any]) -> None:
    task, records = agent.session.task, agent.session.world.records
    facts = task.facts
    told = [("topic", task.kind)]
    parts = []
    for key in facts["targets"]:
        trip = records[key]
        if facts["known"] == "named":
            told.append(("trip", key))
            parts.append(f"trip {key}")
        elif facts["known"] == "listed":
            parts.append("one of my trips, tell me first which ones I have,")
        elif facts["known"] == "asked":
            parts.append("one of my trips")
        else:
            parts.append(f"my trip from {trip['from']} to {trip['to']}")
    when = ""
    if task.kind == "move":
        when = {
            "said": f" to {facts['date']}",
            "searched": " to any day with a free place",
            "picked": " to another day, I can't say which yet",
            "through": f" to {facts['date']}, if need be with a change on the way",
            "compared": f" to the cheapest of {', '.join(sorted(_named_days(facts)))}",
        }[facts["how"]]
        if facts["how"] in ("said", "through", "compared"):
            told += [("date", day) for day in _named_days(facts)]
    want = _WANT[task.kind].format(it=" and ".join(parts), when=when, pieces=facts.get("pieces"))
    if facts["email_given"]:
        want += f" My address with you is {agent.address(account, facts['stale'])}."
    agent.open(want, *told)


def _named_days(facts: Mapping[str, Any]) -> list[str]:
    """The days that the user has named: one, or those to compare."""
    days: list[str] = facts["days"][: facts["compared"]]
    return days


def _complain(agent: Agent) -> None:
    """A claim about some trip: every one has to be looked at before it can be passed on."""
    session, facts = agent.session, agent.session.task.facts
    agent.look("trip.get", "trip", facts["trips"], len(facts["trips"]))
    for key in agent.rng.sample(facts["trips"], min(len(facts["trips"]), 2)):
        trip = session.world.records[key]
        session.call("state.get", {"service": trip["service"], "date": trip["date"]}, {"topic": "delay"})
    agent.hand_off("your trips", "none of them was late", f"{facts['account']} claims a delay; none found")
    agent.close("a specialist will write to you.")


def _side_looks(agent: Agent) -> None:
    """Look-ups beside the point: another view of what is known, or a matter that nobody raised."""
    session, key = agent.session, agent.session.task.facts["targets"][0]
    trip = session.world.records[key]
    if session.flaws.recheck_at and agent.rng.random() < 0.35:
        session.attempt(agent.rng.choice(("trip.get.legs", "trip.get.refund")), {"id": key})
    while session.flaws.wrong and agent.rng.random() < 0.15 and session.flaws.take("wrong", 1):
        session.call("state.get", {"service": trip["service"], "date": trip["date"]}, {"topic": "delay"})


def _cancel_all(agent: Agent) -> None:
    session, records = agent.session, agent.session.world.records
    targets = session.task.facts["targets"]
    agent.confirm(" and ".join(targets), "I'd cancel it and pay back what you paid.", targets)
    for key in targets:
        if session.flaws.wrong and agent.rng.random() < 0.25 and session.flaws.take("wrong", 1):
            session.call("trip.cancel", {"id": key.lower().strip("#") + "x"}, {"trip": key + "x"})
        session.call("trip.cancel", {"id": key})
        if session.flaws.verifies and session.world.brief:
            session.call("trip.get", {"id": key}, {"trip": key})
    agent.needless([" + ".join(str(records[key]["amount"]) for key in targets)], f"{targets[0]} cancelled")
    agent.close(f"{', '.join(targets)} cancelled.")


def _charge(agent: Agent, tool: str, key: str, **fields: Any) -> None:
    session = agent.session
    pay = session.world.records[key]["pay"]
    wallet = [item["id"] for item in session.world.records[session.task.facts["account"]]["wallet"]]
    others = [item for item in wallet if item != pay]
    if others and session.flaws.wrong and agent.rng.random() < 0.25 and session.flaws.take("wrong", 1):
        session.call(tool, {"id": key, **fields, "pay": agent.rng.choice(others)})
    session.call(tool, {"id": key, **fields, "pay": pay})
    if session.flaws.verifies and session.world.brief:
        session.call("trip.get", {"id": key}, {"trip": key})


def _upgrade_class(agent: Agent) -> None:
    facts = agent.session.task.facts
    key = facts["targets"][0]
    agent.confirm(key, f"I'd book a {facts['class']} instead.", [key])
    _charge(agent, "trip.change.class", key, **{"class": facts["class"]})
    agent.needless(["120 + 35 - 18"], f"{key} upgraded")
    agent.close(f"{key} is now a {facts['class']}.")


def _add_luggage(agent: Agent) -> None:
    facts = agent.session.task.facts
    key = facts["targets"][0]
    agent.confirm(key, f"I'd put {facts['pieces']} pieces on it.", [key])
    agent.session.call("trip.change.luggage", {"id": key, "pieces": facts["pieces"]})
    agent.needless(["15 + 15 + 20"], f"luggage added to {key}")
    agent.close(f"{key} has {facts['pieces']} pieces now.")


def _refuse(agent: Agent) -> None:
    session = agent.session
    key = session.task.facts["targets"][0]
    while session.flaws.wrong and agent.rng.random() < 0.4 and session.flaws.take("wrong", 1):
        session.call("trip.cancel", {"id": key})
    agent.hand_off(key, "its fare is fixed", f"{session.task.facts['account']} asks to cancel {key}, fixed fare")
    agent.say(("The specialist will write to you about {it}.",), it=key)
    agent.hear(("Okay.", "Thank you anyway."))


def _search(agent: Agent, key: str, day: str, tool: str = "offers.list") -> Answer:
    trip = agent.session.world.records[key]
    return agent.session.call(tool, {"from": trip["from"], "to": trip["to"], "date": day}, {"date": day})


def _move_trip(agent: Agent) -> None:
    session, facts = agent.session, agent.session.task.facts
    key, days = facts["targets"][0], list(facts["days"][facts["compared"] :])
    if facts["how"] == "through":
        _search(agent, key, facts["date"])
        _search(agent, key, facts["date"], "offers.find.via")
    elif facts["how"] in ("said", "compared"):
        for day in days[: session.flaws.take("wrong", agent.rng.randint(0, 2))]:
            _search(agent, key, day)
        for day in agent.rng.sample(_named_days(facts), facts["compared"]):
            _search(agent, key, day)
    elif facts["how"] == "searched":
        for day in days[: session.flaws.take("explore", 4)]:
            _search(agent, key, day)
        _search(agent, key, facts["date"])
    else:
        tried = [*days[: session.flaws.take("explore", 4)], facts["date"]]
        agent.rng.shuffle(tried)
        for day in tried:
            _search(agent, key, day)
        agent.say(("There are places on {days}. Which day suits you?",), days=", ".join(sorted(tried)))
        agent.hear(("Then {day}.", "{day} is best.", "I'd take {day}."), ("date", facts["date"]), day=facts["date"])
    agent.confirm(key, f"I'd move it to {facts['date']}, service {facts['service']}.", [key])
    _charge(agent, "trip.change.date", key, date=facts["date"], service=facts["service"])
    agent.needless(["88 - 54"], f"{key} moved")
    agent.close(f"{key} now leaves on {facts['date']}.")


_PLANS = {"move": _move_trip, "class": _upgrade_class, "luggage": _add_luggage, "refused": _refuse}
