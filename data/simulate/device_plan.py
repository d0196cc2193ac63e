"""How agent and user go about a case of the support line: the account first, then the box, one thing at a time."""

from __future__ import annotations

from typing import Any

from stepsieve.data.simulate.agent import Agent
from stepsieve.data.simulate.device import ACCOUNT_CAUSES, BOX_CAUSES, HIDDEN
from stepsieve.data.simulate.session import Session
from stepsieve.data.simulate.world import Task


def play(session: Session) -> None:
    """Identify, look at the account, then settle the account's causes and have the caller settle the box's."""
    task, records = session.task, session.world.records
    facts = task.facts
    agent = Agent(session, records[facts["account"]]["name"])
    number = records[facts["target"]]["number"]
    want = agent.rng.choice(
        (
            "My internet at home is down.",
            "The connection is terribly slow and drops out.",
            "Nothing loads any more on any of our devices.",
        )
    )
    if {"guests", "check"} & set(facts["on_account"]):
        want += " Our guests can't get on either."
    agent.open(want + (f" The number is {number}." if facts["number_given"] else ""))
    if not facts["number_given"]:
        agent.say(
            (
                "What is the number of the connection?",
                "Please tell me the number it runs under.",
                "I'll need the number of the line first, {name}.",
            )
        )
        agent.hear(("{it}", "It's {it}.", "The number is {it}."), it=number)
    session.call("account.find.phone", {"phone": number}, {"account": facts["account"]})
    _look_at_account(agent)
    if facts["on_account"] == ("ended",):
        agent.hand_off(number, "its contract has ended", f"{facts['account']}: contract of {facts['target']} ended")
        agent.close("a specialist will call you.")
        return
    _settle_account(agent)
    _settle_box(agent)
    if facts["defect"]:
        about = f"{facts['account']}, box of {number}: board defective"
        agent.hand_off(number, "the box itself is broken", about)
        agent.close("a specialist will bring a new box.")
        return
    agent.needless(["12 + 30"], f"{number} works again")
    agent.close("the connection is fine again.")


def _look_at_account(agent: Agent) -> None:
    """What the agent reads before it turns to the box: needed where the account holds a cause, a guess elsewhere."""
    facts = agent.session.task.facts
    others = [key for key in facts["units"] if key != facts["target"]]
    agent.rng.shuffle(others)
    if _open_sites(agent, others):
        _ask_about_volume(agent)
        _look_on(agent, others)


def _open_sites(agent: Agent, others: list[str]) -> bool:
    """Open sites up to the caller's own, taking them from ``others``; returns whether that one was opened."""
    session, flaws = agent.session, agent.flaws
    facts = session.task.facts
    # Where both budgets want sites, each gets its part.
    keep = min(flaws.wrong, len(others) // 2) if flaws.wrong else 0
    order = [others.pop() for _ in range(flaws.take("explore", len(others) - keep))]
    # Without a cause in the account, the caller's own site is a guess as well.
    wants = bool(facts["on_account"]) or flaws.take("explore", 1) == 1
    if wants:
        order.append(facts["target"])
    if flaws.parallel and len(order) > 1:
        session.batch([("unit.get", {"id": key}, _suspects(session.task, key)) for key in order])
    else:
        for key in order:
            session.call("unit.get", {"id": key}, _suspects(session.task, key))
    return wants


def _ask_about_volume(agent: Agent) -> None:
    """Read the tariff, where the volume is used up or may be, and the usage that site and tariff have told already."""
    session, facts = agent.session, agent.session.task.facts
    unit = session.world.records[facts["target"]]
    if "volume" not in facts["on_account"] and not (unit["status"] == "active" and agent.flaws.take("explore", 1)):
        return
    session.call("tariff.get", {"id": unit["tariff"]}, {"cause": "volume"})
    if agent.flaws.recheck_at and agent.rng.random() < 0.8:
        session.call("usage.get", {"account": facts["account"], "unit": facts["target"]}, {"cause": "volume"})


def _look_on(agent: Agent, others: list[str]) -> None:
    """Look-ups that the site's record has ruled out: other sites, bills of a site that is not blocked, and so on."""
    session, facts = agent.session, agent.session.task.facts
    target, unit = facts["target"], session.world.records[facts["target"]]
    plans: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("unit.get", {"id": key}, {"unit": key} if facts["on_account"] else {"cause": "bill", "unit": key})
        for key in others
    ]
    if unit["status"] != "active":
        plans.append(("tariff.get", {"id": unit["tariff"]}, {"cause": "volume"}))
        plans.append(("usage.get", {"account": facts["account"], "unit": target}, {"cause": "volume"}))
    if "bill" not in facts["on_account"]:
        plans.append(("bill.list", {"id": facts["account"]}, {"cause": "bill"}))
    agent.rng.shuffle(plans)
    for plan in plans[: agent.flaws.take("wrong", len(plans))]:
        session.call(*plan)


def _suspects(task: Task, key: str) -> dict[str, Any]:
    """What opening a site can settle: which cause lies in the account, and which site is meant."""
    if task.facts["on_account"]:
        return {"unit": key}
    return {"cause": ACCOUNT_CAUSES, "unit": key}


def _settle_account(agent: Agent) -> None:
    session, facts = agent.session, agent.session.task.facts
    target, number = facts["target"], session.world.records[facts["target"]]["number"]
    if "bill" in facts["on_account"]:
        _settle_bill(agent, target)
    if "guests" in facts["on_account"]:
        session.call("unit.change.guests", {"id": target})
    if "volume" in facts["on_account"]:
        _offer_volume(agent, number)
        agent.hear(("{gb} more, please.", "Give me {gb} GB."), gb=facts["extra"])
        session.call("unit.change.volume", {"id": target, "extra": facts["extra"]})
    if facts["on_account"] and agent.flaws.verifies and session.world.brief:
        session.call("unit.get", {"id": target}, {"unit": target})


def _offer_volume(agent: Agent, number: str) -> None:
    """Say what is used and what more costs: what usage and tariff were read for."""
    records, facts = agent.session.world.records, agent.session.task.facts
    unit = records[facts["target"]]
    tariff = records[unit["tariff"]]
    options = (
        "{it} has used {used} of {cap}. More costs {amount} each. How much would you like?",
        "On the {plan} tariff {cap} are included, and {used} are gone. Shall I add some, at {amount} apiece?",
    )
    agent.say(options, it=number, used=unit["used"], cap=tariff["cap"], amount=tariff["amount"], plan=tariff["name"])


def _settle_bill(agent: Agent, target: str) -> None:
    session, facts = agent.session, agent.session.task.facts
    bill = facts["bill"]
    session.call("bill.list", {"id": facts["account"]}, {"cause": "bill"})
    if session.flaws.recheck_at and agent.rng.random() < 0.6:
        # The list holds every bill in full.
        session.attempt("bill.get", {"id": bill}, {"cause": "bill"})
    paid = [key for key in session.world.records[facts["account"]]["bills"] if key != bill]
    if agent.rng.random() < 0.3 and agent.flaws.take("wrong", 1):
        session.call("bill.make", {"id": paid[0]})
    if agent.rng.random() < 0.3 and agent.flaws.take("wrong", 1):
        session.call("unit.change.status", {"id": target})
    due = session.world.records[bill]
    options = (
        "Bill {bill} of {date} over {amount} is open. May I send it?",
        "{amount} are due ({bill}). Shall I send it?",
    )
    agent.say(options, bill=bill, date=due["date"], amount=due["amount"])
    agent.hear(("Yes, do.", "Okay, send it."))
    session.call("bill.make", {"id": bill})
    agent.say(("I've sent it. Tell me when you have paid.",))
    session.user_call("pay.run", "", id=bill)
    agent.hear(("Paid.", "I've just paid it."))
    session.call("bill.get", {"id": bill}, {"cause": "bill"})
    session.call("unit.change.status", {"id": target})


def _settle_box(agent: Agent) -> None:
    """The caller's part. Each thing found is put right at once; at the end the speed is measured."""
    session, facts = agent.session, agent.session.task.facts
    if facts["on_box"] or facts["defect"]:
        if agent.wordy > agent.rng.random():
            _tell(agent)
        agent.say(
            ("Please open the status page of the box and read it to me.", "What does the box's status page show?")
        )
        shown = session.user_call("box.get", agent.rng.choice(("", "", "Wait, I'm opening it.")))
        agent.hear(
            ("It says: {it}", "Here is what I see: {it}"), it=", ".join(f"{k} {v}" for k, v in shown.payload.items())
        )
    if facts["defect"]:
        return
    names = [name for name in BOX_CAUSES if name in facts["on_box"] or (name in HIDDEN and agent.rng.random() < 0.4)]
    for name in sorted(names, key=lambda name: (name in HIDDEN, agent.rng.random())):
        if name in HIDDEN:
            agent.say(("Let's see the setting {it}.",), it=name)
            answer = session.user_call("box.get.detail", "", name=name)
            agent.hear(("{it}", "Here: {it}"), it=answer.payload)
        if name in facts["on_box"]:
            _fix(agent, name)
    if facts["on_box"] and agent.rng.random() < 0.5:
        agent.say(("Once more the status page, please.", "Does the status page look better now?"))
        shown = session.user_call("box.get")
        agent.hear(("Now it says: {it}",), it=", ".join(f"{k} {v}" for k, v in shown.payload.items()))
    agent.say(("Please measure the speed now.", "Let's run a speed test."))
    answer = session.user_call("test.run")
    agent.hear(("{it}", "It shows {it}. Thank you!"), it=answer.payload)


def _tell(agent: Agent) -> None:
    """Tell the caller what the account says, as far as the agent has read it."""
    session = agent.session
    seen = dict.fromkeys(step.arguments["id"] for step in session.steps if step.tool in ("unit.get", "tariff.get"))
    said = [
        f"{name} {session.world.records[key][name]}"
        for key in seen
        for name in ("id", "status", "used", "cap", "fee")
        if name in session.world.records[key]
    ]
    if said:
        agent.say(
            ("Your file shows {it}. So far I see no reason there.", "From the account: {it}."), it=", ".join(said)
        )
        agent.hear(("Okay.", "And now?", "What should I do?"))


def _fix(agent: Agent, name: str) -> None:
    """Have the caller put one setting right, and perhaps measure at once or ask what it does."""
    session = agent.session
    agent.say(
        ("That's it: {it} is {bad}. Please put it right.", "{it} should not be {bad}. Please change that."),
        it=name,
        bad=session.world.records["box"][name],
    )
    if agent.rng.random() < 0.25:
        agent.hear(("What does {it} do?", "Where do I find {it}?", "Is that safe?"), it=name)
        agent.say(("It is under the advanced settings, and safe to change.", "Second entry from the top. Go ahead."))
    agent.chat()
    answer = session.user_call(BOX_CAUSES[name][2], agent.rng.choice(("", "", "Doing it now.")))
    agent.hear(("Done: {it}", "Okay. {it}"), it=answer.payload)
    if agent.rng.random() < 0.4:
        agent.say(("Is it any better?", "Please measure the speed."))
        answer = session.user_call("test.run")
        agent.hear(("{it}", "The test says {it}."), it=answer.payload)
