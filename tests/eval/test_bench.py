"""The benchmark on files made by hand, against values worked out by hand; and on released answers, known figures."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson
import pytest

from stepsieve.data import redundancybench
from stepsieve.data.errors import DataError
from stepsieve.data.features import PAIR_FEATURES, schema_hash
from stepsieve.data.references import normalise
from stepsieve.data.simulate import simulate
from stepsieve.data.trajectory import (
    ABNORMAL,
    DUPLICATED,
    EXPLORATORY,
    INCORRECT,
    REDUNDANCY_TYPES,
    Label,
    Message,
    ToolCall,
    Trajectory,
)
from stepsieve.eval.bench import predict_all, seen_in_training
from stepsieve.eval.results import CLS, DET, RET, read
from stepsieve.eval.scores import compare, match, score
from stepsieve.models import checkpoint
from stepsieve.models.calibrate import Temperature
from stepsieve.models.judge import Judge
from stepsieve.models.scorer import create
from stepsieve.train.config import GbdtOptions, TrainConfig
from stepsieve.train.fit import Training

ROOT = Path(__file__).parents[2]
JUDGE = ROOT.parent / "shared" / "data" / "llm_judges" / "frontier-chat-llm"


def run_of(name, *labels, calls=6, domain="desk"):
    """A user's wish, then calls at messages 1, 3, 5, ... with results at 2, 4, 6, ..., then a text."""
    messages = [Message("user", "please")]
    for number in range(calls):
        messages += [
            Message("assistant", None, (ToolCall("look", {"n": number}, f"c{number}"),)),
            Message("tool", f"found {number}", call_id=f"c{number}", error=False),
        ]
    messages.append(Message("assistant", "done"))
    return Trajectory(name, tuple(messages), domain=domain, task_id=name, subset="automated", agent="x", labels=labels)


CORPUS = [
    run_of(
        "a",
        Label((1, 2), EXPLORATORY, (3, 4)),
        Label((5, 6), DUPLICATED, (1, 2, 3, 4)),
        Label((7, 8), INCORRECT, (-1,), synthetic=True),
    ),
    run_of("b", Label((1, 2), ABNORMAL, (3, 4)), domain="shop"),
    run_of("c", Label((1, 2), DUPLICATED, (3, 4))),
    run_of("d", Label((1, 2), DUPLICATED, (3, 4)), calls=12),
    run_of("e", Label((1, 2), DUPLICATED, (3, 4))),
]


def step(trajectory, call, predicted, evidence=None, **more):
    record = {"identity": f"{trajectory}:{call}-{call + 1}", "trajectory_id": trajectory, "predicted_type": predicted}
    record["redundant_step_idx"] = [call, call + 1]
    if evidence is not None:
        record["predicted_evidence_idx"] = evidence
    return {**record, "error": None, **more}


def triple(call, kind, evidence, confidence):
    return {
        "redundant_step_idx": [call, call + 1],
        "redundant_step_type": kind,
        "evidence_step_idx": evidence,
        "confidence": confidence,
    }


CLASSIFY = [
    step("a", 1, EXPLORATORY),
    step("a", 5, EXPLORATORY),
    step("a", 7, None),
    step("b", 1, ABNORMAL),
]
RETRIEVE = [
    step("a", 1, EXPLORATORY, [3, 4]),
    step("a", 5, DUPLICATED, [3, 4, 1, 2]),  # joint evidence in another order: the same
    step("a", 7, EXPLORATORY, [-1]),
    step("b", 1, ABNORMAL, [5, 6]),
]
DETECT = [
    {
        "trajectory_id": "a",
        "predictions": [
            triple(1, EXPLORATORY, [3, 4], 0.9),
            triple(5, DUPLICATED, [3, 4, 1, 2], 0.9),
            triple(1, EXPLORATORY, [3, 4], 0.8),  # the step again: a miss, whatever it says
            triple(7, INCORRECT, [-1], 0.7),
            triple(9, INCORRECT, [-1], None),  # no confidence: ranked first, never scores, does not use the step up
            *(triple(call, INCORRECT, [-1], 0.5) for call in (9, 11, 9, 11, 9, 11)),
        ],
    },
    {
        "trajectory_id": "b",
        "predictions": [  # a tie keeps the order given
            triple(3, ABNORMAL, [5, 6], 0.5),
            triple(1, ABNORMAL, [3, 4], 0.5),
        ],
    },
    {"trajectory_id": "c", "predictions": []},
    {"trajectory_id": "d", "predictions": [triple(1, DUPLICATED, [3, 4], 1)]},
    {"trajectory_id": "e", "predictions": None, "error": "time-out"},
]
# Ranked, a scores 0 1 1 0 1 0 0 0 0 0 (0), b scores 0 1, d scores 1; c and e return nothing.
P1, P5, P10 = (0 + 0 + 0 + 1 + 0) / 5, (3 / 5 + 1 / 2 + 0 + 1 + 0) / 5, (3 / 10 + 1 / 2 + 0 + 1 + 0) / 5


def written(path, results, **metadata):
    path.write_bytes(orjson.dumps({"metadata": metadata, "results": results}))
    return path


def scores_of(path):
    return score(match(read(path), CORPUS))


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_step_cls_by_hand(tmp_path):
    scores = scores_of(written(tmp_path / "x.json", CLASSIFY))
    assert next(iter(scores)) == "all"
    assert scores["all"]["accuracy"] == pytest.approx(2 / 4)
    assert scores["all"]["n"] == 4
    assert scores["natural"]["accuracy"] == pytest.approx(2 / 3)
    assert scores[f"type/{DUPLICATED}"]["accuracy"] == 0
    assert scores["domain/shop"]["accuracy"] == 1
    assert scores["domain/desk"]["accuracy"] == pytest.approx(1 / 3)
    assert scores["agent/x"]["n"] == scores["subset/automated"]["n"] == scores["length/8-30"]["n"] == 4
    assert "ece" not in scores["all"]


def test_evidence_ret_by_hand(tmp_path):
    scores = scores_of(written(tmp_path / "x.json", RETRIEVE))
    assert scores["all"]["joint_accuracy"] == pytest.approx(2 / 4)
    assert scores["all"]["evidence_accuracy"] == pytest.approx(3 / 4)
    assert scores["all"]["type_accuracy"] == pytest.approx(3 / 4)


@pytest.mark.parametrize("lines", [False, True], ids=["result file", "JSON Lines"])
def test_step_det_by_hand(tmp_path, lines):
    path = written(tmp_path / "x.json", DETECT)
    if lines:
        path = tmp_path / "x.jsonl"
        path.write_bytes(b"\n".join(orjson.dumps(record) for record in DETECT))
    scores = scores_of(path)
    assert scores["all"]["p@1"] == pytest.approx(P1)
    assert scores["all"]["p@5"] == pytest.approx(P5)
    assert scores["all"]["p@10"] == pytest.approx(P10)
    assert scores["all"]["avg_p@k"] == pytest.approx((P1 + P5 + P10) / 3)
    assert scores["domain/shop"]["p@5"] == pytest.approx(1 / 2)
    assert not any(name.startswith("type/") or name == "natural" for name in scores)


def test_one_line_of_json_lines_is_no_result_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(orjson.dumps(DETECT[1]))
    assert scores_of(path)["all"]["n"] == 1


def test_confidences_of_a_result_file_are_used(tmp_path):
    results = [{**record, "confidence": level} for record, level in zip(CLASSIFY, (0.9, 0.6, 0.6, 0.9), strict=True)]
    scores = scores_of(written(tmp_path / "x.json", results))
    assert scores["all"]["ece"] == pytest.approx((2 * 0.1 + 2 * 0.6) / 4)


def test_what_a_model_gets_wrong_is_no_bad_input(tmp_path):
    results = [
        step("a", 1, "Necessary Step", [3, 4, 5]),
        step("a", 5, DUPLICATED, "see above"),
        step("a", 7, INCORRECT, [-1], error="refused"),
        {"identity": "b:1-2", "predicted_type": ABNORMAL, "predicted_evidence_idx": "[3, 4]"},
    ]
    scores = scores_of(written(tmp_path / "x.json", results))
    assert scores["all"]["joint_accuracy"] == pytest.approx(1 / 4)


def test_trajectories_that_the_data_has_not_are_counted(tmp_path):
    items = match(read(written(tmp_path / "x.json", [*CLASSIFY, step("z", 1, DUPLICATED)])), CORPUS)
    assert (len(items), items.asked, items.foreign) == (4, 7, 1)


def test_two_sets_are_compared_on_the_units_of_both(tmp_path):
    first = match(read(written(tmp_path / "x.json", CLASSIFY)), CORPUS)
    other = [step("b", 1, DUPLICATED), step("a", 1, EXPLORATORY), step("c", 1, DUPLICATED), step("a", 5, DUPLICATED)]
    second = match(read(written(tmp_path / "y.json", other)), CORPUS)
    found = compare(first, second)["all"]
    assert found["n"] == 3
    assert found["first"] == pytest.approx(2 / 3)
    assert found["second"] == pytest.approx(2 / 3)
    assert found["difference"] == pytest.approx(0)
    assert (found["only_first"], found["only_second"], found["p_value"]) == (1, 1, 1)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["empty"]),
        (b"{", ["JSON"]),
        (b"[]", ["result file"]),
        (b'{"results": 3}', ["results", "list"]),
        (b'{"results": []}', ["predicted_type"]),
        (b'{"results": [4]}', ["results[0]", "object"]),
        (b'{"results": [{"predicted_type": null}]}', ["results[0].trajectory_id"]),
        (b'{"results": [{"predicted_type": null, "trajectory_id": "a"}]}', ["'a'", "results[0].redundant_step_idx"]),
        (b'{"results": [{"predicted_type": 3, "identity": "a:1-2"}]}', ["'a'", "results[0].predicted_type", "text"]),
        (
            b'{"results": [{"predicted_type": null, "predicted_evidence_idx": 3, "identity": "a:1-2"}]}',
            ["'a'", "results[0].predicted_evidence_idx", "indices"],
        ),
        (b'{"trajectory_id": "a"}', ["'a'", "line 1.predictions", "list"]),
        (b'{"trajectory_id": "a", "predictions": [{}]}', ["'a'", "line 1.predictions[0].redundant_step_idx"]),
        (b'{"trajectory_id": "a", "predictions": []}\n' * 2, ["'a'", "line 2", "two"]),
        (b'{"trajectory_id": "a", "predictions": []}\n{"trajectory_id', ["line 2", "JSON"]),
        (b'{"trajectory_id": 5, "predictions": []}', ["line 1.trajectory_id"]),
    ],
)
def test_bad_files(tmp_path, content, words):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert all(word in str(error.value) for word in words), str(error.value)


def test_an_answer_for_a_step_without_label(tmp_path):
    path = written(tmp_path / "x.json", [step("a", 3, DUPLICATED)])
    with pytest.raises(DataError, match=r"trajectory 'a': redundant_step_idx: expected no answers for step \[3, 4\]"):
        scores_of(path)


def test_predictions_for_other_data(tmp_path):
    with pytest.raises(DataError, match="found none among 1 trajectories"):
        scores_of(written(tmp_path / "x.json", [step("z", 3, DUPLICATED)]))


# --- a checkpoint ----------------------------------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path):
    """A checkpoint whose head always says Duplicated, trained on the tasks of a and b."""
    names = tuple(feature.name for feature in PAIR_FEATURES)
    scorer = create("majority", names, len(REDUNDANCY_TYPES))
    scorer.fit(np.zeros((1, len(names)), dtype=np.float32), np.zeros(1, dtype=np.int64), np.ones(1))
    tasks = [checkpoint.group_digest(run.group) for run in CORPUS[:2]]
    schema = schema_hash(PAIR_FEATURES)
    head = checkpoint.Head(CLS, "majority", scorer, Temperature(), REDUNDANCY_TYPES, names, schema, {"tasks": tasks})
    checkpoint.save(tmp_path / "trained", head, {})
    return tmp_path / "trained"


def test_a_checkpoint_is_scored(trained):
    judge = Judge.from_pretrained(trained)
    (predictions,) = predict_all(judge, trained, CORPUS)
    assert (predictions.task, predictions.name) == (CLS, "trained")
    assert score(match(predictions, CORPUS))["all"]["accuracy"] == pytest.approx(4 / 7)
    assert seen_in_training(judge, CORPUS) == 2


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A checkpoint with all heads, small, trained on simulated runs."""
    config = TrainConfig(inner_folds=2, gbdt=GbdtOptions(rounds=5, threads=1))
    judge = Training(simulate(30), (CLS, RET, DET), [], config).fit("gbdt", np.arange(30))
    folder = tmp_path_factory.mktemp("full") / "all"
    for head in judge.heads.values():
        checkpoint.save(folder, head, {})
    return folder


def test_all_heads_are_scored(full):
    judge = Judge.from_pretrained(full)
    corpus = [run for run in simulate(30, seed=4) if run.labels is not None]
    found = {predictions.task: match(predictions, corpus) for predictions in predict_all(judge, full, corpus)}
    assert list(found) == [CLS, RET, DET]
    assert {items.name for items in found.values()} == {"all"}
    labels = [(run, label) for run in corpus for label in run.labels]
    assert len(found[CLS]) == len(found[RET]) == len(labels)
    assert len(found[DET]) == len(corpus)
    types = [judge.classify(run, label.step, label.evidence).choice == label.type for run, label in labels]
    assert score(found[CLS])["all"]["accuracy"] == pytest.approx(np.mean(types))
    answers = [judge.retrieve(run, label.step) for run, label in labels]
    joint = [(p.type, p.evidence) == (x.type, normalise(x.evidence)) for p, (_, x) in zip(answers, labels, strict=True)]
    assert score(found[RET])["all"]["joint_accuracy"] == pytest.approx(np.mean(joint))
    first = [
        bool(own) and (own[0].step, own[0].type, own[0].evidence) in {(x.step, x.type, x.evidence) for x in run.labels}
        for run in corpus
        for own in [judge.detect(run)]
    ]
    assert score(found[DET])["all"]["p@1"] == pytest.approx(np.mean(first))


def test_a_step_with_two_labels_is_answered_twice(full):
    run = run_of("two", Label((1, 2), EXPLORATORY, (3, 4)), Label((1, 2), DUPLICATED, (3, 4)))
    for predictions in predict_all(Judge.from_pretrained(full), full, [run])[:2]:
        assert len(match(predictions, [run])) == 2


def test_a_head_without_the_one_it_needs(full, tmp_path):
    judge = Judge.from_pretrained(full)
    checkpoint.save(tmp_path / "part", judge.heads[DET], {})
    redundancybench.write(CORPUS, tmp_path / "data")
    found = bench("--data", tmp_path / "data", "--checkpoint", tmp_path / "part")
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert "expected a checkpoint with the head" in found.stderr
    assert found.stderr.count("\n") == 1


def bench(*arguments):
    command = [sys.executable, ROOT / "eval" / "bench.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_command(tmp_path, trained):
    redundancybench.write(CORPUS, tmp_path / "data")
    classify = written(tmp_path / "x.json", CLASSIFY, model="judge")
    detect = written(tmp_path / "y.json", DETECT, model="judge")
    out = tmp_path / "figures.json"
    common = ("--data", tmp_path / "data", "--json", out)
    found = bench(*common, "--checkpoint", trained, "--predictions", classify, detect)
    assert found.returncode == 0, found.stderr
    assert "warning: 2 of 5 trajectories solve a task that this checkpoint was trained on" in found.stdout
    assert "StepCls, judge: 4 of 7 labelled steps" in found.stdout
    assert "StepDet, judge: 5 of 5 trajectories" in found.stdout
    assert "published, all 1,920 trajectories" in found.stdout
    figures = orjson.loads(out.read_bytes())
    assert list(figures) == [CLS, "cls (judge)", "cls: trained - judge", DET]
    assert all(next(iter(slices)) == "all" for slices in figures.values())
    assert figures[CLS]["all"]["accuracy"] == pytest.approx(4 / 7)
    assert figures["cls: trained - judge"]["all"]["n"] == 4
    first = out.read_bytes()
    bench(*common, "--checkpoint", trained, "--predictions", classify, detect)
    assert out.read_bytes() == first


def test_the_report(tmp_path):
    pytest.importorskip("matplotlib")
    redundancybench.write(CORPUS, tmp_path / "data")
    files = [written(tmp_path / f"{k}.json", results) for k, results in enumerate((CLASSIFY, RETRIEVE, DETECT))]
    found = bench("--data", tmp_path / "data", "--predictions", *files, "--out", tmp_path / "out")
    assert found.returncode == 0, found.stderr
    text = (tmp_path / "out" / "bench.md").read_text()
    images = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert images == [
        "cls-0-types.png",
        "det-2-p-at-k.png",
        "det-2-reliability.png",
        "det-2-risk-coverage.png",
        "ret-1-types.png",
    ]
    assert all(f"({name})" in text for name in images)


@pytest.mark.parametrize("arguments", [(), ("--checkpoint", "none"), ("--predictions", "none.json")])
def test_bad_arguments_are_one_line(tmp_path, arguments):
    redundancybench.write(CORPUS, tmp_path)
    found = bench("--data", tmp_path, *arguments)
    assert found.returncode == 2
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert found.stdout == ""


# --- released answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "task", "known"),
    [
        ("classify.json", CLS, {("all", "accuracy"): 86.1, ("subset/automated", "accuracy"): 86.5}),
        (
            "retrieve.json",
            RET,
            {
                ("all", "joint_accuracy"): 77.8,
                ("all", "evidence_accuracy"): 91.7,
                ("subset/automated", "joint_accuracy"): 85.6,
            },
        ),
        (
            "detect.json",
            DET,
            {
                ("all", "p@1"): 86.7,
                ("all", "p@5"): 70.4,
                ("all", "p@10"): 66.0,
                ("subset/automated", "avg_p@k"): 77.7,
            },
        ),
    ],
)
def test_known_figures_of_a_chat_model(released, file, task, known):
    if not JUDGE.is_dir():
        pytest.skip("the answers of a chat model are not beside the checkout")
    items = match(read(JUDGE / file), released)
    assert items.task == task
    scores = score(items)
    found = {where: round(100 * scores[where[0]][where[1]], 1) for where in known}
    assert found == known
