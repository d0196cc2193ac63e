"""Pruning: what a kept step uses stays, pairs stay whole, and the API's rules hold, on cases by hand and on any run."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsieve.data.errors import DataError
from stepsieve.data.openai_chat import chat, check_chat
from stepsieve.data.pruning import prune, prune_batch
from stepsieve.data.trajectory import Message, ToolCall, Trajectory


def asks(id, content=None, requestor="assistant", /, **arguments):
    return Message("assistant", content, (ToolCall("look", arguments, id, requestor),))


def answers(id, content, requestor="assistant"):
    return Message("tool", content, call_id=id, requestor=requestor)


def run(*messages, policy=""):
    return Trajectory("run", tuple(messages), policy=policy)


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_a_step_that_nothing_uses_goes_with_its_message_and_its_text():
    whole = run(
        Message("user", "hello"), asks("a", "let me look", n="x1"), answers("a", "found z9"), Message("assistant", "ok")
    )
    pruned = prune(whole, [(1, 2)])
    assert [message.content for message in pruned.trajectory.messages] == ["hello", "ok"]
    assert (pruned.kept, pruned.removed, pruned.retained, pruned.loose) == ((0, 3), ((1, 2),), {}, ())
    assert pruned.trajectory.labels is None


def test_a_step_whose_result_a_kept_step_uses_stays():
    whole = run(Message("user", "hello"), asks("a"), answers("a", "id z9"), asks("b", id="z9"), answers("b", "done"))
    pruned = prune(whole, [(1, 2)])
    assert pruned.trajectory.messages == whole.messages
    assert (pruned.removed, pruned.retained) == ((), {(1, 2): (3, 4)})
    # With its only user gone, it goes too.
    both = prune(whole, [(1, 2), (3, 4)])
    assert (both.kept, both.removed, both.retained) == ((0,), ((1, 2), (3, 4)), {})


def test_what_stays_makes_stay_what_it_uses():
    whole = run(
        *(asks("a"), answers("a", "key z1")),
        *(asks("b", key="z1"), answers("b", "key z2")),
        *(asks("c", key="z2"), answers("c", "done")),
    )
    pruned = prune(whole, [(0, 1), (2, 3)])
    assert pruned.retained == {(0, 1): (2, 3), (2, 3): (4, 5)}


@pytest.mark.parametrize(
    "before",
    [Message("user", "my id is z9"), Message("assistant", "z9 it is")],
    ids=["the user", "the agent"],
)
def test_what_was_said_before_any_result_held_it_needs_no_result(before):
    whole = run(before, asks("a"), answers("a", "id z9"), asks("b", id="z9"), answers("b", "done"))
    assert prune(whole, [(1, 2)]).removed == ((1, 2),)


def test_what_the_user_repeats_of_a_result_still_came_by_it():
    whole = run(
        *(asks("a"), answers("a", "offer z9"), Message("assistant", "z9?"), Message("user", "take z9")),
        *(asks("b", id="z9"), answers("b", "done")),
    )
    assert prune(whole, [(0, 1)]).retained == {(0, 1): (4, 5)}


def test_of_two_equal_readings_the_second_goes_and_one_of_two_stays():
    whole = run(
        *(asks("a", n="x"), answers("a", "id z9")),
        *(asks("b", n="x"), answers("b", "id z9")),
        *(asks("c", id="z9"), answers("c", "done")),
    )
    assert prune(whole, [(2, 3)]).removed == ((2, 3),)
    assert prune(whole, [(0, 1)]).removed == ((0, 1),)
    both = prune(whole, [(0, 1), (2, 3)])
    assert (both.removed, both.retained) == (((2, 3),), {(0, 1): (4, 5)})


def test_the_words_of_a_summary_are_no_use_of_a_result_but_its_codes_are():
    summary = "the customer asked about a blue lamp that was never delivered {}"
    for code, removed in (("", ((0, 1),)), ("z9", ())):
        whole = run(
            *(asks("a"), answers("a", "lamp blue delivered z9")),
            *(asks("b", text=summary.format(code)), answers("b", "done")),
        )
        assert prune(whole, [(0, 1)]).removed == removed


def test_one_of_two_parallel_calls_goes_and_its_message_keeps_the_other():
    calls = (ToolCall("look", {"n": 1}, "a"), ToolCall("look", {"n": 2}, "b"))
    whole = run(Message("assistant", "both", calls), answers("b", "two"), answers("a", "one"))
    pruned = prune(whole, [(0, 2)])
    assert [call.id for call in pruned.trajectory.messages[0].tool_calls] == ["b"]
    assert pruned.trajectory.messages[0].content == "both"
    assert pruned.kept == (0, 1)
    # Unpruned, the API wants the answers in one run after the call, each to its own id.
    messages, sources = chat(prune(whole, ()))
    check_chat(messages)
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in messages[1:]] == [
        ("tool", "a", "one"),
        ("tool", "b", "two"),
    ]
    assert sources == [0, 2, 1]


def test_calls_without_results_and_results_without_calls_are_left_out():
    whole = run(asks("a"), answers("b", "whose?"), asks("c", "still a text"), Message("user", "hello"))
    pruned = prune(whole, ())
    assert [message.content for message in pruned.trajectory.messages] == ["still a text", "hello"]
    assert pruned.trajectory.messages[0].tool_calls == ()
    assert (pruned.kept, pruned.loose) == ((2, 3), (0, 1, 2))


def test_repeated_and_missing_ids_become_ids_of_their_own_and_pairs_stay():
    whole = run(
        *(asks("a", n=1), answers("a", "one"), asks("a", n=2), answers("a", "two")),
        *(asks(None, n=3), answers(None, "three"), asks("b", n=4), answers("b", "four")),
    )
    pruned = prune(whole, [(0, 1)])
    pairs = {it.call.arguments["n"]: it.result for it in pruned.trajectory.interactions}
    assert pairs == {2: "two", 3: "three", 4: "four"}
    ids = [it.call.id for it in pruned.trajectory.interactions]
    assert len(set(ids)) == 3
    assert ids[2] == "b"


def test_the_users_own_calls_stay_in_the_run_and_are_no_part_of_the_chat():
    whole = run(
        asks("a"),
        answers("a", "code z9"),
        Message("user", None, (ToolCall("press", {"code": "z9"}, "u", "user"),)),
        answers("u", "pressed", "user"),
        Message("user", "I pressed it"),
        policy="be kind",
    )
    pruned = prune(whole, [(0, 1)])
    assert pruned.retained == {(0, 1): (2, 3)}  # the user's step uses it
    messages, sources = chat(pruned)
    check_chat(messages)
    assert [message["role"] for message in messages] == ["system", "assistant", "tool", "user"]
    assert messages[0] == {"role": "system", "content": "be kind"}
    assert sources == [None, 0, 1, 4]


def test_arguments_are_json_text_and_what_was_none_stays_as_written():
    whole = run(asks("a", n={"deep": [1]}), answers("a", ""), asks("b", **{"": '{"id": '}), answers("b", "error"))
    messages, _ = chat(prune(whole, ()))
    arguments = [call["function"]["arguments"] for m in messages for call in m.get("tool_calls", ())]
    assert arguments == ['{"n":{"deep":[1]}}', '{"id": ']
    check_chat(messages)


def test_a_step_that_is_none_is_bad_input():
    with pytest.raises(DataError, match=r"answered assistant call.*found \[0, 1\]"):
        prune(run(Message("user", "hello"), Message("assistant", "hi")), [(0, 1)])


CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
ANSWER = {"role": "tool", "tool_call_id": "a", "content": "x"}
USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([ANSWER], r"messages\[0\].*open call"),
        ([CALL, ANSWER, ANSWER], r"messages\[2\].*open call"),
        ([CALL, USER, ANSWER], r"messages\[1\].*answers to 1"),
        ([USER, CALL], "at the end"),
        ([CALL, ANSWER, CALL, ANSWER], r"messages\[2\].*no other has"),
        ([{**CALL, "tool_calls": [{"id": None}]}], "expected an id"),
        ([{**CALL, "role": "user"}], "assistant alone"),
        ([USER, {"role": "assistant", "content": ""}], r"messages\[1\].*content or calls"),
    ],
)
def test_every_rule_of_the_api_is_checked(messages, words):
    check_chat([USER, CALL, ANSWER, USER])
    with pytest.raises(DataError, match=words):
        check_chat(messages)


# --- any run ---------------------------------------------------------------------------------------------------------

CODES = [f"z{n}" for n in range(8)]


@st.composite
def runs(draw):
    """Runs as recordings can be: parallel calls, late, missing and stray results, repeated and missing ids, users who
    call tools; codes come up in results, arguments and texts."""
    codes = st.lists(st.sampled_from(CODES), max_size=3).map(" ".join)
    messages, owed = [], []
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["user", "say", "call", "call", "call", "answer", "answer", "stray"]))
        if kind == "answer" and owed:
            id, side = owed.pop(draw(st.integers(0, len(owed) - 1)))
            messages.append(answers(id, draw(codes), side))
        elif kind == "stray":
            messages.append(answers(draw(st.sampled_from(["stray", None])), draw(codes)))
        elif kind == "call":
            side = draw(st.sampled_from(["assistant", "assistant", "user"]))
            made = []
            for _ in range(draw(st.integers(1, 3))):
                id = draw(st.sampled_from(["a", "b", f"own{len(messages)}{len(made)}", None]))
                made.append(ToolCall("look", {"q": draw(codes)}, id, side))
                owed.append((id, side))
            messages.append(Message(side, draw(st.sampled_from([None, "let me see"])), tuple(made)))
        else:
            messages.append(Message("user" if kind == "user" else "assistant", draw(codes)))
    for id, side in owed:
        if draw(st.booleans()):
            messages.append(answers(id, draw(codes), side))
    return run(*messages, policy=draw(st.sampled_from(["", "be kind"])))


@st.composite
def requests(draw):
    whole = draw(runs())
    steps = sorted(it.reference for it in whole.steps)
    return whole, draw(st.lists(st.sampled_from(steps), unique=True)) if steps else []


def text_of(whole, index):
    return whole.messages[index].content or ""


@given(requests())
def test_every_call_that_is_left_has_the_result_it_had(request):
    whole, steps = request
    pruned = prune(whole, steps)
    left = [(it.call_index, it.result_index) for it in pruned.trajectory.interactions]
    assert all(result is not None for _, result in left)
    original = {(pruned.kept[call], pruned.kept[result]) for call, result in left}
    assert original == whole.by_reference.keys() - set(pruned.removed)
    n_results = sum(message.role == "tool" for message in pruned.trajectory.messages)
    assert n_results == len(left)
    ids = [it.call.id for it in pruned.trajectory.interactions]
    assert None not in ids
    assert len(set(ids)) == len(ids)


@given(requests())
def test_messages_keep_their_order_and_texts_and_every_step_asked_for_is_accounted_for(request):
    whole, steps = request
    pruned = prune(whole, steps)
    assert list(pruned.kept) == sorted(set(pruned.kept))
    assert [m.content for m in pruned.trajectory.messages] == [whole.messages[index].content for index in pruned.kept]
    assert Counter(steps) == Counter([*pruned.removed, *pruned.retained])
    gone = set(range(len(whole.messages))) - set(pruned.kept)
    assert gone <= {index for step in pruned.removed for index in step} | set(pruned.loose)


@given(requests())
def test_no_kept_call_takes_a_code_that_only_removed_results_had(request):
    whole, steps = request
    pruned = prune(whole, steps)
    kept = {ref: it for ref, it in whole.by_reference.items() if ref not in pruned.removed}
    for (call, _), it in kept.items():
        for code in it.call.arguments["q"].split():
            sources = [ref for ref in whole.by_reference if ref[1] < call and code in text_of(whole, ref[1]).split()]
            if not any(ref in pruned.removed for ref in sources):
                continue
            first = min(ref[1] for ref in sources)
            said = any(code in text_of(whole, i).split() for i in range(first) if whole.messages[i].role != "tool")
            taken = any(
                code in other.call.arguments["q"].split() for (c, _), other in whole.by_reference.items() if c < first
            )
            assert said or taken or any(ref in kept for ref in sources)
    # And nothing stays without need: what uses it stays too, and holds one of its codes.
    for step, user in pruned.retained.items():
        assert user in kept
        assert set(kept[user].call.arguments["q"].split()) & set(text_of(whole, step[1]).split())


@given(requests())
def test_every_pruned_run_keeps_the_rules_of_the_api(request):
    whole, steps = request
    messages, sources = chat(prune(whole, steps))
    check_chat(messages)
    assert len(messages) == len(sources)
    for message, source in zip(messages, sources, strict=True):
        if source is not None:
            assert message["role"] == whole.messages[source].role
            assert (message["content"] or "") == text_of(whole, source)


@given(st.lists(requests(), max_size=4))
def test_many_at_once_are_as_one_by_one(several):
    batch = prune_batch([whole for whole, _ in several], [steps for _, steps in several])
    assert batch == [prune(whole, steps) for whole, steps in several]


# --- whole corpora ---------------------------------------------------------------------------------------------------


def check_corpus(corpus):
    for steps in ([[label.step for label in run.labels or ()] for run in corpus], [[] for _ in corpus]):
        for whole, pruned in zip(corpus, prune_batch(corpus, steps), strict=True):
            assert {(it.call_index, it.result_index) for it in pruned.trajectory.interactions} == set(
                pruned.trajectory.by_reference
            ), whole.id
            check_chat(chat(pruned)[0])
            yield pruned


def test_every_simulated_run_stays_a_run(simulated):
    assert sum(len(pruned.removed) for pruned in check_corpus(simulated)) > 100


def test_every_released_run_stays_a_run(released):
    found = list(check_corpus(released))
    removed, retained = (sum(len(getattr(own, name)) for own in found) for name in ("removed", "retained"))
    assert removed + retained == 857
    assert 0 < retained < 60
