"""What the run was for, as far as its structure shows it, and whether a step served it.

An *act* is a successful assistant call most of whose values stood in the assistant's last text, to which the user has
replied: proposed, confirmed, done. The numbers and codes in the arguments of the acts are the *goal*. A look-up made
before the goal was known was exploration; one made after it was known had no ground any more.
"""

from __future__ import annotations

import numpy as np

from stepsieve.data.features.groups import Grouping
from stepsieve.data.features.index import ARGUMENTS, ASSISTANT, RESULT, USER, Bools, Floats, Index
from stepsieve.data.features.registry import Feature, Values, count, flag, ratio, share

FEATURES: tuple[Feature, ...] = (
    flag("goal.is_act", "its values had been put to the user and confirmed"),
    count("goal.acts_before", "acts before it"),
    count("goal.acts_after", "acts after it"),
    share("goal.arguments", "share of the numbers and codes in its arguments that later acts take"),
    share("goal.result", "share of the values of later acts that its result holds"),
    share("goal.found_here", "share of the values of later acts that its result brings first"),
    share("goal.known", "share of the values of later acts known by then, its own result included"),
    flag("goal.sibling_before", "an earlier call of the tool brought more that is used than it did"),
    flag("goal.sibling_after", "a later call of the tool brings more that is used than it does"),
    count("goal.use", "weighted number of its new values used in later arguments or the next text"),
    share("goal.final", "share of its new values in the assistant's last text"),
)

PROPOSED = 0.6
"""Share of an act's argument values that must have stood in the assistant's last text."""


def acts(index: Index) -> Bools:
    """(n_calls,) which calls are acts."""
    own = index.calls.arguments
    proposed = ratio(index.total(index.stands_in_previous(ASSISTANT))[own], index.size[own])
    replied = index.previous_document(USER, own) > index.previous_document(ASSISTANT, own)
    return index.calls.assistant & ~index.calls.error & (np.nan_to_num(proposed) >= PROPOSED) & replied


def usage(index: Index) -> Floats:
    """(n_calls,) weighted number of new values of each result that later arguments or the next text use."""
    new = index.first[index.token] == index.document
    used = (index.last_in(ARGUMENTS)[index.token] > index.document) | index.stands_in_next(ASSISTANT)
    return index.total(new & used)[index.calls.output]


def compute(index: Index) -> Values:
    """The features of every call of the batch; each value has shape (n_calls,)."""
    calls, document, token = index.calls, index.document, index.token
    own = calls.output
    is_act, use = index.once(acts), index.once(usage)
    run, tool = Grouping(calls.run), Grouping(calls.tool)

    act_document = np.zeros(len(index.kind), dtype=bool)
    act_document[calls.arguments[is_act]] = True
    last_act = np.where(index.specific, index.last_where(act_document), -1)
    known = np.minimum(index.first_in(RESULT), index.first_in(USER))
    in_goal = last_act[token] > document
    # How many values later acts take, and how many of them are not known yet: counts of tokens beyond a document.
    ahead = index.count_beyond(last_act, own)
    unknown = index.count_beyond(np.where(last_act >= 0, np.minimum(known, last_act), -1), own)

    codes = np.bincount(document, index.specific[token], minlength=len(index.kind))
    goal_codes = np.bincount(document, in_goal, minlength=len(index.kind))
    found_here = np.bincount(document, in_goal & (known[token] == document), minlength=len(index.kind))
    new = index.first[token] == document
    final = index.previous_document(ASSISTANT, index.run_end[calls.run] - 1)
    last_text = index.last_in(ASSISTANT)[token] >= np.append(final, -1)[index.call_of(document)]
    return {
        "goal.is_act": is_act,
        "goal.acts_before": run.count_before(is_act),
        "goal.acts_after": run.count_after(is_act),
        "goal.arguments": ratio(goal_codes[calls.arguments], codes[calls.arguments]),
        "goal.result": ratio(goal_codes[own], ahead),
        "goal.found_here": ratio(found_here[own], ahead),
        "goal.known": ratio(ahead - unknown, ahead),
        "goal.sibling_before": tool.max_before(use) > use,
        "goal.sibling_after": tool.max_after(use) > use,
        "goal.use": use,
        "goal.final": ratio(index.total(new & last_text)[own], index.total(new)[own]),
    }
