"""Consensus: strict majorities of nodes, conditions, edges, bindings and minefields; transitive reduction."""

import networkx as nx
import pytest

from stepsieve.data.errors import DataError
from stepsieve.eval.stagewise.consensus import consensus, majority, node_keys
from stepsieve.eval.stagewise.graph import Binding, Condition, Milestone, MilestoneGraph, Minefield
from stepsieve.eval.stagewise.task_view import TaskView, Tool

LETTERS = TaskView("x", tuple(Tool(name, {"properties": {"p": {}}}, {"f": "string"}) for name in "abcdz"))


def graph(names, edges=(), **parts):
    return MilestoneGraph(tuple(Milestone(name, name) for name in names), tuple(map(tuple, edges)), **parts)


def tools(made):
    return "".join(sorted(own.tool for own in made.milestones))


def order(made):
    tool = {own.id: own.tool for own in made.milestones}
    return {tool[a] + tool[b] for a, b in made.edges}


def test_a_strict_majority_is_the_ceiling_of_half_of_one_more():
    assert [majority(count) for count in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]


def test_nodes_need_a_strict_majority():
    assert tools(consensus([graph("abc"), graph("ab"), graph("a")], LETTERS)) == "ab"
    # Of four, two are no majority: b has 3, c has 2.
    assert tools(consensus([graph("abc"), graph("abc"), graph("ab"), graph("a")], LETTERS)) == "ab"
    assert tools(consensus([graph("ab"), graph("ac")], LETTERS)) == "a"
    assert tools(consensus([graph("abc")], LETTERS)) == "abc"


def test_nodes_are_equal_by_canonical_tool_and_role_whatever_their_ids():
    one = MilestoneGraph((Milestone("x", "a", "read"), Milestone("y", "b", "write")))
    two = MilestoneGraph((Milestone("q", "A", "read"), Milestone("r", "b", "read")))
    made = consensus([one, two], LETTERS)
    assert [(own.tool, own.role) for own in made.milestones] == [("a", "read")]


def test_the_second_of_equal_nodes_needs_its_own_majority():
    twice = MilestoneGraph((Milestone("x", "a"), Milestone("y", "a")))
    assert [key[2] for key in node_keys(twice).values()] == [0, 1]
    assert tools(consensus([twice, twice, graph("a")], LETTERS)) == "aa"
    assert tools(consensus([twice, graph("a"), graph("a")], LETTERS)) == "a"


def test_edges_are_kept_alike_and_reduced():
    made = consensus([graph("abc", ["ab", "bc", "ac"]), graph("abc", ["ab", "bc"]), graph("abc", ["ac"])], LETTERS)
    assert order(made) == {"ab", "bc"}
    # Precedence through a node that the majority does not have stays precedence.
    made = consensus([graph("azc", ["az", "zc"]), graph("ac", ["ac"]), graph("ac")], LETTERS)
    assert order(made) == {"ac"}


def test_majorities_that_go_round_in_a_circle_are_no_precedence():
    three = [
        graph("abcd", ["ab", "bc", "cd"]),
        graph("abcd", ["bc", "ca", "cd"]),
        graph("abcd", ["ca", "ab", "bd", "cd"]),
    ]
    made = consensus(three, LETTERS)
    assert nx.is_directed_acyclic_graph(made.precedence)
    assert order(made) == {"ad", "bd", "cd"}


def test_bindings_conditions_and_minefields_alike():
    binding, other = Binding("b", "p", "a", "f"), Condition("argument", "p", 2)

    def candidate(bindings, conditions, mines):
        nodes = (Milestone("a", "a"), Milestone("b", "b", conditions=conditions))
        return MilestoneGraph(nodes, (("a", "b"),), bindings, mines)

    one = Condition("argument", "p", 1)
    made = consensus(
        [
            candidate((binding,), (one,), (Minefield("c", severity=1.0), Minefield("d"))),
            candidate((binding,), (one, other), (Minefield("c", severity=0.5),)),
            candidate((), (), ()),
        ],
        LETTERS,
    )
    ids = {own.tool: own.id for own in made.milestones}
    assert made.bindings == (Binding(ids["b"], "p", ids["a"], "f"),)
    assert made.by_id[ids["b"]].conditions == (one,)
    assert [(own.tool, own.severity) for own in made.minefields] == [("c", 0.75)]


def test_invalid_candidates_do_not_count():
    bad = graph("aq")
    assert tools(consensus([graph("ab"), bad, bad], LETTERS)) == "ab"


def test_without_a_valid_candidate_or_a_majority_there_is_an_error_and_no_graph():
    with pytest.raises(DataError, match=r"a valid candidate among 2, found none.*found 'q'"):
        consensus([graph("q"), MilestoneGraph(())], LETTERS)
    with pytest.raises(DataError, match="a valid candidate among 0"):
        consensus([], LETTERS)
    with pytest.raises(DataError, match="2 of 2 candidates hold"):
        consensus([graph("a"), graph("b")], LETTERS)
