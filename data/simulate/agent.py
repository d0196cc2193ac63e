"""The scripted agent and user of a service desk: what travel and shop have in common, and the wording.

The agent knows its task's plan and spends the budgets of its flaws on the way: it opens the wrong objects first, goes
on looking after it has found the right one, guesses, repeats. It writes no label.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from stepsieve.data.simulate.session import Session
from stepsieve.data.simulate.surface import phrase
from stepsieve.data.simulate.world import RULE, Answer, World

GREETINGS = (
    "Hello, you've reached the service desk. What can I do for you?",
    "Good day! How may I help?",
    "Welcome. Tell me what you need.",
    "Hi, this is the help desk. What is it about?",
)
OPENINGS = (
    "Hello. {want}",
    "Good morning, {name} here. {want}",
    "Hi! {want} Can you sort that out?",
    "{want}",
    "Hey there, I hope you're well. It's {name}. {want} I'd be glad if this could be done today.",
)
ASK_ACCOUNT = (
    "Gladly. Which e-mail address is the account registered under?",
    "Sure. Please give me the e-mail address of your account first.",
    "Before I can open anything I need to know who you are. Your e-mail address, please?",
)
GIVE = ("{it}", "It's {it}.", "That would be {it}.", "Sure: {it}, as far as I remember.")
ASK_OBJECT = (
    "I see several entries on your account: {ids}. Which one do you mean?",
    "Thanks, {name}. There is more than one on file ({ids}). Could you tell me the right one?",
    "Let me list what I found: {ids}. Which of these is it about?",
)
NAME_OBJECT = ("I mean {it}.", "It's {it}, please.", "{it}. Sorry, I should have said so at once.")
LIST_OBJECTS = (
    "This is what I have for you. {it}. Which one shall it be?",
    "Here is the list, {name}: {it}. Which of them do you mean?",
)
FOUND = (
    "Found it: {it}. {plan} Shall I go ahead?",
    "I have {it} in front of me. {plan} Do you agree?",
    "Thank you, {name}. This is about {it}. {plan} Please confirm with yes.",
)
AGREE = ("Yes.", "Yes, please go ahead.", "Agreed, do it.", "That's fine with me, thank you.", "yes")
DONE = (
    "That's done: {what}",
    "All set. {what} Anything else?",
    "I've completed it. {what} Thank you for your patience, {name}.",
)
BYE = ("No, that's all. Thanks!", "Perfect, goodbye.", "Great, thank you for the help.", "That was everything.")
SORRY = (
    "I'm afraid I can't get this done today.",
    "I'm sorry, I have to stop here without a result.",
    "Unfortunately this isn't working. Please try again another time.",
)
DENIED = (
    "The rules don't let me do that for {it}: {why}. I'm passing it on to a specialist.",
    "I looked at {it}. {why}, so the desk can't do it; a specialist will take over.",
)
REMARKS = (
    "My daughter did the booking side of things.",
    "I'm on the road, so keep it short.",
    "Take your time.",
    "The last call was cut off, sorry.",
    "I have all my papers here if you need them.",
)


CHAT = (
    ("How long will that take?", "Not long, a minute or two."),
    ("Will I get a letter about it?", "You'll get an e-mail, and a letter if you have asked for one."),
    ("Is this call recorded?", "Only if you agreed at the start."),
    ("Who do I turn to if it goes wrong?", "To this desk, any day from eight to eight."),
    ("Does it cost anything?", "The call is free. What the change itself costs, I've told you."),
    ("I was told something else last time.", "I can't see what was said then, but this is what the rules say."),
    ("Could you explain that again?", "Of course: nothing changes before you say yes."),
)


class Agent:
    """Plays both sides of a conversation in a session."""

    def __init__(self, session: Session, name: str):
        self.session = session
        self.rng: random.Random = session.rng
        self.flaws = session.flaws
        self.name = name
        self.chatty: float = self.rng.choice((0.0, 0.0, 0.0, 0.3, 0.75))
        self.wordy: float = self.rng.choice((0.0, 0.3, 0.9))

    def say(self, options: Sequence[str], **values: object) -> None:
        self.session.assistant(phrase(self.rng, options, name=self.name, **values))

    def hear(self, options: Sequence[str], *told: tuple[str, str], **values: object) -> None:
        """A user message, now and then with a remark that has nothing to do with it."""
        text = phrase(self.rng, options, name=self.name, **values)
        if self.rng.random() < 0.15:
            text += " " + self.rng.choice(REMARKS)
        self.session.user(text, *told)

    def chat(self) -> None:
        """Questions between the steps that change nothing: some runs are long for no other reason."""
        for _ in range(3):
            if self.rng.random() >= self.chatty:
                return
            question, answer = self.rng.choice(CHAT)
            self.session.user(question)
            self.session.assistant(answer)

    def open(self, want: str, *told: tuple[str, str]) -> None:
        self.say(GREETINGS)
        self.hear(OPENINGS, *told, want=want)

    def identify(self, account: str, given: bool, stale: bool) -> None:
        """Find out who calls, and read the account.

        ``given``: the user has said the e-mail address at once. ``stale``: the address is an old one, which nobody can
        know before the look-up fails; name and postcode lead on.
        """
        record = self.session.world.records[account]
        email = self.address(record, stale)
        if not given:
            if self.rng.random() < 0.15 and self.flaws.take("wrong", 1):
                guess = f"{self.name.split()[0].lower()}_{self.name.split()[-1].lower()}"
                self.session.call("account.get", {"id": guess}, {"account": guess})
            self.say(ASK_ACCOUNT)
            self.hear(GIVE, it=email)
        self.session.call("account.find.email", {"email": email})
        if stale:
            self.say(("I can't find that address. Your full name and postcode, please?", "No hit. Name and postcode?"))
            self.hear(("{it}", "It's {it}."), it=f"{record['name']}, {record['postcode']}")
            self.session.call("account.find.name", {"name": record["name"], "postcode": record["postcode"]})
        if self.rng.random() < 0.06 and self.flaws.take("wrong", 1):
            wrong = account.lower() if account != account.lower() else account + "0"
            self.session.call("account.get", {"id": wrong}, {"account": wrong})
        self.session.call("account.get", {"id": account}, {"account": account})

    def address(self, account: Mapping[str, Any], stale: bool) -> str:
        """The e-mail address that the user gives."""
        email: str = account["email"]
        return "old." + email if stale else email

    def look(self, tool: str, slot: str, order: Sequence[str], together: int = 0) -> None:
        """Open objects one after another, the first ``together`` of them in one message."""
        queue = list(order)
        if self.flaws.parallel and together > 1:
            self.session.batch([(tool, {"id": key}, {slot: key}) for key in queue[:together]])
            queue = queue[together:]
        while queue:
            key = queue.pop(0)
            answer = self.session.call(tool, {"id": key}, {slot: key}, later=bool(queue))
            needed = key in self.session.task.truth[slot]
            if answer.failure == "transient" and (needed or self.rng.random() < 0.6):
                queue.insert(self.rng.randint(1, len(queue)), key)

    def find(self, tool: str, slot: str, targets: Sequence[str], others: Sequence[str], how: str) -> None:
        """Find the object that the user means.

        Args:
            tool: opens one object.
            slot: the slot of the task whose value is looked for.
            targets: the right objects.
            others: what else is on the account.
            how: "named" where the user has named the objects, so that any other one is known to be wrong; "described"
                where the right one is known on sight; "asked" where only the user can tell, and does when asked;
                "listed" where the user wants to hear of all of them first, and then picks.
        """
        if how == "described":
            self._find_described(tool, slot, targets, others)
        elif how == "listed":
            everything = self.rng.sample([*targets, *others], len(targets) + len(others))
            self.look(tool, slot, everything, len(everything))
            self.say(LIST_OBJECTS, it="; ".join(self.recite(key) for key in everything))
            self.hear(NAME_OBJECT, *((slot, key) for key in targets), it=" and ".join(targets))
        elif how == "named":
            wrong = self.rng.sample(list(others), self.flaws.take("wrong", len(others)))
            cut = self.rng.randint(0, len(wrong))
            self.look(tool, slot, [*wrong[:cut], *targets, *wrong[cut:]])
        else:
            self._find_by_asking(tool, slot, targets, others)

    def _find_described(self, tool: str, slot: str, targets: Sequence[str], others: Sequence[str]) -> None:
        """Open one after another until the right one is seen; a hasty agent goes on after that."""
        rest = self.rng.sample(list(others), len(others))
        # Where both budgets want more objects than there are, each gets its part.
        keep = min(self.flaws.wrong, len(rest) // 2) if len(rest) < self.flaws.explore + self.flaws.wrong else 0
        before = [rest.pop() for _ in range(self.flaws.take("explore", len(rest) - keep))]
        first = [*before, *targets[:-1]]
        self.rng.shuffle(first)
        self.look(tool, slot, [*first, targets[-1]], len(first) + 1)
        self.look(tool, slot, [rest.pop() for _ in range(self.flaws.take("wrong", len(rest)))])

    def _find_by_asking(self, tool: str, slot: str, targets: Sequence[str], others: Sequence[str]) -> None:
        """Open some on suspicion, then ask, as should have been done at once."""
        rest = self.rng.sample(list(others), len(others))
        seen = [rest.pop() for _ in range(self.flaws.take("explore", len(rest)))]
        seen += targets if self.rng.random() < 0.5 else []
        self.rng.shuffle(seen)
        self.look(tool, slot, seen, len(seen))
        self.say(ASK_OBJECT, ids=", ".join([*targets, *others][:6]))
        self.hear(NAME_OBJECT, *((slot, key) for key in targets), it=" and ".join(targets))
        wrong = [rest.pop() for _ in range(self.flaws.take("wrong", min(len(rest), 2)))]
        self.look(tool, slot, [*(key for key in targets if key not in seen), *wrong])

    def recite(self, key: str) -> str:
        """Some of what a record holds, in words."""
        record = self.session.world.records[key]
        plain = [f"{name} {value}" for name, value in record.items() if _plain(value) and name != "id"]
        return f"{key}: {', '.join(self.rng.sample(plain, min(len(plain), 4)))}"

    def confirm(self, it: str, plan: str, keys: Sequence[str] = ()) -> None:
        """Put a change to the user, who agrees. A wordy agent reads out the records ``keys`` and what else it saw."""
        records = self.session.world.records
        if self.wordy > self.rng.random():
            read = [f"{name} {value}" for key in keys for name, value in records[key].items() if _plain(value)]
            plan = f"It says: {', '.join(self.rng.sample(read, len(read) * 2 // 3))}. {plan}"
        if self.wordy / 2 > self.rng.random():
            opened = [step.arguments.get("id") for step in self.session.steps if not step.answer.changed]
            seen = dict.fromkeys(key for key in opened if key in records and "status" in records[key])
            plan = "I have looked at " + ", ".join(f"{key} ({records[key]['status']})" for key in seen) + ". " + plan
        self.say(FOUND, it=it, plan=plan)
        self.chat()
        self.hear(AGREE)

    def needless(self, sums: Sequence[str], about: str) -> None:
        """What the rules forbid and nothing needs: a sum on the calculator, a hand-off of a case that is solved."""
        if self.flaws.wrong and sums and self.rng.random() < 0.12 and self.flaws.take("wrong", 1):
            self.session.call("sum.run", {"expression": self.rng.choice(list(sums))})
        if self.flaws.wrong and self.rng.random() < 0.08 and self.flaws.take("wrong", 1):
            self.session.call("handoff.make", {"summary": f"For information only: {about}"})

    def hand_off(self, it: str, why: str, about: str) -> None:
        """Pass the case on, with or without asking first."""
        if self.rng.random() < 0.5:
            self.say(DENIED, it=it, why=why)
            self.hear(("All right.", "If that's how it is, pass it on.", "Fine, but please hurry."))
        if self.wordy > self.rng.random():
            about += f". {it}: {why}. The caller is {self.name} and waits for a call back."
        self.session.call("handoff.make", {"summary": about})

    def close(self, what: str) -> None:
        self.say(DONE, what=what)
        self.hear(BYE)


def _plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and value != ""


def find_account(world: World, args: Any) -> Answer:
    """account.find.email: the id of the account with that address."""
    for key, record in world.records.items():
        if "email" in record and record["email"] == args["email"]:
            return Answer({"id": key}, world.facts(key, "id"))
    return Answer("no account with that address", failure="permanent")


def find_by_name(world: World, args: Any) -> Answer:
    """account.find.name: the id of the account with that name and postcode."""
    for key, record in world.records.items():
        if record.get("postcode") == args["postcode"] and record["name"] == args["name"]:
            return Answer({"id": key}, world.facts(key, "id"))
    return Answer("no account with that name and postcode", failure="permanent")


def calculate(world: World, args: Any) -> Answer:
    """sum.run: adds up an expression of the form ``a + b - c``. The policy forbids it for plain sums."""
    total = sum(float(part) for part in args["expression"].replace("- ", "+ -").split("+"))
    return Answer({"result": round(total, 2)}, breach=RULE)


def hand_off(world: World, args: Any) -> Answer:
    """handoff.make: passes the case on; out of order where nothing asks for it."""
    desk = world.records["desk"]
    changed = world.write("desk", handed_off=True)
    breach = None if desk["needed"] else RULE
    return Answer("passed on", world.facts("desk", "handed_off"), changed, breach=breach)


def open_record(world: World, args: Any) -> Answer:
    """Any look-up of one whole record by its id."""
    return world.show(args["id"])
