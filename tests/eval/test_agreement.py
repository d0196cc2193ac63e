"""Agreement on cases small enough to work out by hand, and on files as annotators leave them."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.trajectory import (
    ABNORMAL,
    DUPLICATED,
    EXPLORATORY,
    INCORRECT,
    Label,
    Message,
    ToolCall,
    Trajectory,
)
from stepsieve.eval.agreement import compare, report, together
from stepsieve.eval.annotators import Annotator, Group, gold, load_annotator, majority, of_detections, of_labels
from stepsieve.eval.detection import Detection
from stepsieve.eval.kappa import alpha, cohen, fleiss

pytest.importorskip("nltk", reason="the extra agreement is not installed")
ROOT = Path(__file__).parents[2]


def run_of(name, *labels, calls=5, domain="desk", subset="automated"):
    """Calls at messages 1, 3, 5, ... with results at 2, 4, 6, ...: ``calls`` steps that could be redundant."""
    messages = [Message("user", "please")]
    for number in range(calls):
        messages.append(Message("assistant", None, (ToolCall("look", {"n": number}, f"c{number}"),)))
        messages.append(Message("tool", f"found {number}", call_id=f"c{number}", error=False))
    return Trajectory(name, tuple(messages), domain=domain, task_id=name, subset=subset, labels=labels)


RUNS = [
    run_of("a", Label((1, 2), EXPLORATORY, (3, 4)), Label((5, 6), DUPLICATED, (1, 2, 3, 4))),
    run_of("b", Label((1, 2), INCORRECT, (-1,))),
    run_of("c"),
]


def annotator(name, **groups):
    return Annotator(name, {run: tuple(Group(*group) for group in own) for run, own in groups.items()})


# In run a: one group right; a step right with another type, and one of its two evidences. In b nothing answered. In c
# a step that is not redundant, and one that a model wrote unusably.
JUDGE = annotator(
    "judge",
    a=[((1, 2), EXPLORATORY, (3, 4)), ((5, 6), ABNORMAL, (1, 2))],
    c=[((3, 4), INCORRECT, (1, 2)), (None, INCORRECT, (1, 2))],
)


def values(figures):
    return {name: own.value for name, own in figures.items() if hasattr(own, "value")}


def test_with_gold_by_hand_on_the_runs_that_were_answered():
    figures = compare(gold(RUNS), JUDGE, [RUNS[0], RUNS[2]])
    # 4 groups named, 2 in gold, 1 the same; steps: 4 named, 2 in gold, 2 the same.
    assert values(figures) == pytest.approx(
        {
            "group_precision": 1 / 4,
            "group_recall": 1 / 2,
            "group_f1": 2 * 1 / (4 + 2),
            "partial_precision": (1 + 1 / 3) / 4,  # the second step: neither type nor evidence
            "partial_recall": (1 + 1 / 3) / 2,
            "step_precision": 2 / 4,
            "step_recall": 2 / 2,
            "step_f1": 2 * 2 / (4 + 2),
            "type_agreement": 1 / 2,
            "evidence_agreement": 1 / 2,
            "evidence_overlap": (1 + 1 / 2) / 2,
            "identical": 0.0,
        }
    )
    # 10 steps: both redundant 2, the judge alone 1, neither 7; by chance (2*3 + 8*7)/100.
    assert figures["kappa_redundant"] == pytest.approx((0.9 - 0.62) / (1 - 0.62))
    # By type: 8 alike (1 exploratory, 7 necessary); by chance 1*1 + 8*7 of 100, all other products 0.
    assert figures["kappa_type"] == pytest.approx((0.8 - 0.57) / (1 - 0.57))
    assert {x: {y: n for y, n in row.items() if n} for x, row in figures["confusion"].items()} == {
        DUPLICATED: {ABNORMAL: 1},
        ABNORMAL: {},
        INCORRECT: {},
        EXPLORATORY: {EXPLORATORY: 1},
    }


def test_end_to_end_a_run_without_an_answer_is_one_in_which_nothing_was_named():
    found = report([JUDGE], RUNS, gold(RUNS))["gold"]["judge"]
    assert found["conditional"]["group_recall"].value == 1 / 2
    assert found["end_to_end"]["group_recall"].value == 1 / 3
    assert found["end_to_end"]["step_recall"].value == 2 / 3
    assert found["end_to_end"]["group_precision"].value == found["conditional"]["group_precision"].value == 1 / 4
    assert found["end_to_end"]["identical"].n == 3
    assert "pairs" not in report([JUDGE], RUNS, gold(RUNS))


def test_a_step_named_twice_earns_its_better_group_and_counts_its_first_type():
    twice = annotator("twice", b=[((1, 2), ABNORMAL, (-1,)), ((1, 2), INCORRECT, (-1,))])
    figures = values(compare(gold(RUNS), twice, [RUNS[1]]))
    assert figures["group_precision"] == 1 / 2
    assert (figures["partial_precision"], figures["partial_recall"]) == (1 / 2, 1.0)
    assert (figures["step_precision"], figures["step_recall"], figures["type_agreement"]) == (1.0, 1.0, 0.0)


def test_what_nobody_named_is_not_defined_and_no_failure():
    silent = annotator("silent", c=[])
    figures = compare(gold(RUNS), silent, [RUNS[2]])
    assert figures["identical"].value == 1.0
    assert all(math.isnan(figures[name].value) for name in ("group_precision", "step_recall", "type_agreement"))
    assert math.isnan(figures["kappa_type"])
    assert math.isnan(compare(gold(RUNS), silent, [])["group_f1"].value)


# Three annotators of one run of five steps: 1-2, 3-4, 5-6, 7-8, 9-10.
X = annotator("x", c=[((1, 2), EXPLORATORY, (5, 6)), ((3, 4), EXPLORATORY, (5, 6))])
Y = annotator("y", c=[((3, 4), EXPLORATORY, (5, 6)), ((1, 2), EXPLORATORY, (5, 6))])
Z = annotator("z", c=[((1, 2), EXPLORATORY, (7, 8)), ((3, 4), INCORRECT, (5, 6))])


def test_three_annotators_by_hand():
    figures = together([X, Y, Z], [RUNS[2]])
    assert (figures["runs"], figures["consensus"], figures["unanimous"]) == (1, 1.0, 0.0)
    assert figures["step_majority"] == 1.0
    # By type, pairs of annotators that agree on a step: 3, 1, 3, 3, 3 of 3. Labels: exploratory 5, incorrect 1,
    # necessary 9 of 15.
    observed, chance = (1 + 1 / 3 + 3) / 5, (25 + 1 + 81) / 225
    assert figures["fleiss_type"] == pytest.approx((observed - chance) / (1 - chance))
    # Krippendorff's alpha draws without replacement: 1 - (n - 1) * (disagreement seen) / (pairs of unlike labels).
    unlike = 5 * 1 + 5 * 9 + 1 * 9
    assert figures["alpha_type"] == pytest.approx(1 - 14 * (2 * 2 / 2) / (2 * unlike))
    assert figures["fleiss_redundant"] == figures["alpha_redundant"] == 1.0
    assert majority([X, Y, Z], [RUNS[2]]).groups == {
        "c": (Group((1, 2), EXPLORATORY, (5, 6)), Group((3, 4), EXPLORATORY, (5, 6)))
    }


def test_alpha_takes_missing_answers_and_the_others_take_runs_that_all_answered():
    more = run_of("d")
    also = annotator("x", **{**X.groups, "d": [((1, 2), ABNORMAL, (3, 4))]})
    agrees = annotator("y", **{**Y.groups, "d": [((1, 2), ABNORMAL, (3, 4))]})
    runs = [RUNS[2], more]
    assert fleiss([also, agrees, Z], runs, False) == fleiss([X, Y, Z], runs, False)
    assert together([also, agrees, Z], runs)["runs"] == 1
    assert cohen(also, Z, runs, False) == cohen(X, Z, runs, False)
    # 25 labels: exploratory 5, incorrect 1, abnormal 2, necessary 17; one step in disagreement, as before.
    unlike = (25**2 - 5**2 - 1 - 2**2 - 17**2) / 2
    assert alpha([also, agrees, Z], runs, False) == pytest.approx(1 - 24 * 2 / (2 * unlike))


def test_cohen_is_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    labels = [[1, 0, 2, 3, 0, 1, 2, 0, 0, 3], [1, 0, 2, 0, 0, 2, 2, 1, 0, 3]]
    kinds = [None, EXPLORATORY, INCORRECT, ABNORMAL]
    whole = run_of("long", calls=10)
    first, second = (
        Annotator(
            "",
            {"long": tuple(Group(it.reference, kinds[k], (-1,)) for it, k in zip(whole.steps, own, strict=True) if k)},
        )
        for own in labels
    )
    assert cohen(first, second, [whole], False) == pytest.approx(metrics.cohen_kappa_score(*labels))


# --- files -----------------------------------------------------------------------------------------------------------


def row(run, step, kind, evidence, **more):
    own = {"redundant_step_idx": [step], "redundant_step_type": [kind], "evidence_step_idx": [evidence]}
    return {"trajectory_id": run, **own, **more}


def test_files_of_every_form_give_the_same_groups(tmp_path):
    redundancybench.write(RUNS, tmp_path / "folder")
    rows = orjson.loads((tmp_path / "folder" / redundancybench.AUTOMATED / "desk" / "annotation.json").read_bytes())
    (tmp_path / "rows.json").write_bytes(orjson.dumps(rows))
    results = [
        {
            "trajectory_id": run.id,
            "predictions": [
                {
                    "redundant_step_idx": list(label.step),
                    "redundant_step_type": label.type,
                    "evidence_step_idx": list(label.evidence),
                    "confidence": 0.5,
                }
                for label in run.labels
            ],
        }
        for run in [*RUNS, run_of("elsewhere")]
    ]
    (tmp_path / "lines.jsonl").write_bytes(b"\n".join(map(orjson.dumps, results)))
    (tmp_path / "results.json").write_bytes(orjson.dumps({"metadata": {"model": "m"}, "results": results}))
    expected = gold(RUNS).groups
    found = {
        name: load_annotator(tmp_path / name, RUNS) for name in ("folder", "rows.json", "lines.jsonl", "results.json")
    }
    assert {name: own.groups for name, own in found.items()} == dict.fromkeys(found, expected)
    assert [own.foreign for own in found.values()] == [0, 0, 1, 1]
    assert found["results.json"].name == "m"


def test_rows_of_the_human_subset_are_joined_by_task_and_domain(tmp_path):
    human = [
        run_of(f"human_annotation:{domain}:7", Label((1, 2), kind, (3, 4)), domain=domain, subset="human")
        for domain, kind in (("desk", EXPLORATORY), ("shop", INCORRECT))
    ]
    human = [replace(run, task_id="7") for run in human]
    redundancybench.write(human, tmp_path)
    assert load_annotator(tmp_path, human).groups == gold(human).groups
    shop = tmp_path / redundancybench.HUMAN / "shop" / "annotation.json"
    assert list(load_annotator(shop, human).groups) == ["human_annotation:shop:7"]
    elsewhere = tmp_path / "mine.json"
    elsewhere.write_bytes(shop.read_bytes())
    with pytest.raises(DataError, match="2 have the task '7'"):
        load_annotator(elsewhere, human)
    assert list(load_annotator(elsewhere, human[1:]).groups) == ["human_annotation:shop:7"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([row("a", [1, 2], "Silly Step", [3, 4])], r"rows.json: trajectory 'a': redundant_step_type\[0\]"),
        ([row("a", [1, 4], ABNORMAL, [3, 4])], r"redundant_step_idx\[0\]"),
        ([row("a", [1, 2], ABNORMAL, [3, 4])] * 2, "found two"),
        ([row("elsewhere", [1, 2], ABNORMAL, [3, 4])], "found none"),
        ([{"redundant_step_idx": []}], "task_id"),
        ([7], "annotation object, found 7"),
        ({"results": [{"identity": "a:1-2", "predicted_type": ABNORMAL}]}, "StepDet, found StepCls"),
        ({"what": 1}, "trajectory id"),
    ],
)
def test_what_no_annotator_can_have_meant(content, words, tmp_path):
    (tmp_path / "rows.json").write_bytes(orjson.dumps(content))
    with pytest.raises(DataError, match=words):
        load_annotator(tmp_path / "rows.json", RUNS)


def test_a_models_unusable_answers_are_wrong_answers():
    detections = [
        Detection((1, 2), "Silly Step", (5, 6, 3, 4), 0.2),
        Detection(None, ABNORMAL, None, 0.3),
        Detection((3, 4), ABNORMAL, (-1,), 0.9),
        Detection((3, 4), ABNORMAL, (-1,), 0.1),
    ]
    assert of_detections(detections) == (
        Group((3, 4), ABNORMAL, (-1,)),
        Group(None, ABNORMAL, None),
        Group((1, 2), None, (3, 4, 5, 6)),
    )
    assert of_labels([Label((1, 2), ABNORMAL, (5, 6, 3, 4))]) == (Group((1, 2), ABNORMAL, (3, 4, 5, 6)),)


def agree(*arguments, cwd):
    command = [sys.executable, ROOT / "eval" / "agreement.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=cwd)


def test_the_command_prints_and_writes_every_figure(tmp_path):
    redundancybench.write(RUNS, tmp_path / "data")
    for own in (X, Y, Z):
        triples = [[group.step, group.type, group.evidence] for group in own.groups["c"]]
        columns = map(list, zip(*triples, strict=True))
        names = ("redundant_step_idx", "redundant_step_type", "evidence_step_idx")
        rows = [{"trajectory_id": "c", **dict(zip(names, columns, strict=True))}]
        (tmp_path / f"{own.name}.json").write_bytes(orjson.dumps(rows))
    files = ["x.json", "y.json", "z.json"]
    found = agree("--data", "data", "--predictions", *files, "--json", "out.json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "x: 1 of 3 runs answered" in found.stdout
    written = orjson.loads((tmp_path / "out.json").read_bytes())
    assert list(written) == ["gold", "pairs", "together"]
    assert list(written["gold"]) == ["x", "y", "z", "majority"]
    assert list(written["pairs"]) == ["x | y", "x | z", "y | z"]
    assert written["pairs"]["x | y"]["group_f1"]["value"] == 1.0
    assert written["gold"]["x"]["conditional"]["group_recall"]["value"] is None
    assert written["gold"]["x"]["end_to_end"]["group_recall"] == {"value": 0.0, "low": 0.0, "high": 0.0, "n": 3}
    assert written["together"]["consensus"] == 1.0
    again = agree("--data", "data", "--predictions", *files, "--json", "x.json", cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "not among the inputs" in again.stderr
