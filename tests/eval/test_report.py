from io import StringIO

from rich.console import Console

from stepsieve.eval import report

SCORES = {
    "all": {"accuracy": 0.5, "accuracy.low": 0.25, "accuracy.high": 1.0, "macro_f1": 1 / 3, "ece": None, "n": 1234},
    "natural": {"accuracy": None, "accuracy.low": None, "accuracy.high": None, "n": 0},
}
COMPARISON = {
    "all": {
        "first": 0.5,
        "second": 0.25,
        "difference": 0.25,
        "only_first": 3,
        "only_second": 0,
        "p_value": 0.0004,
        "n": 8,
    }
}


def text_of(table):
    console = Console(width=160, file=StringIO())
    console.print(table)
    return console.file.getvalue()


def test_cells_are_percent_with_the_interval_of_the_headline():
    head, rows = report.bench_rows("cls", SCORES)
    assert head == ["slice", "n", "accuracy", "macro F1", "ECE"]
    assert rows == [["all", "1,234", "50.0 [25.0, 100.0]", "33.3", "-"], ["natural", "0", "-", "", ""]]


def test_counts_and_p_values_stay_what_they_are():
    head, (row,) = report.bench_rows("compare", COMPARISON)
    assert dict(zip(head, row, strict=True)) == {
        "slice": "all",
        "n": "8",
        "first": "50.0",
        "second": "25.0",
        "difference": "25.0",
        "only first": "3",
        "only second": "0",
        "McNemar p": "<0.001",
    }


def test_coverage_says_how_much_was_scored():
    assert report.coverage("StepCls", "x", 230, 1857, 0) == "StepCls, x: 230 of 1,857 labelled steps"
    assert report.coverage("StepDet", "x", 2, 3, 1).endswith("; 1 trajectories of the predictions are not in the data")


def test_ours_stand_beside_the_published_and_both_say_on_what():
    rows = report.standings({("ours", "cls"): 0.971, ("ours", "det"): 0.9, ("other", "ret"): 0.5})
    assert rows[0] == ("ours", (97.1, None, 90.0), "the data at hand")
    assert rows[1] == ("other", (None, 50.0, None), "the data at hand")
    assert rows[2] == ("Claude-Opus-5", (84.39, 75.09, 71.25), "published, all 1,920 trajectories")
    assert len(rows) == 2 + len(report.PUBLISHED)
    text = text_of(report.standings_table(rows))
    assert text.count("published, all 1,920 trajectories") == len(report.PUBLISHED)


def test_markdown_holds_every_table_and_plot():
    shown = [("cls", "StepCls, x: 1 of 1 labelled steps", SCORES), ("compare", "x and y", COMPARISON)]
    text = report.bench_markdown(shown, report.standings({("x", "cls"): 0.5}), ["cls-x-types.png"])
    assert "## StepCls, x: 1 of 1 labelled steps" in text
    assert "| all | 1,234 | 50.0 [25.0, 100.0] | 33.3 | - |" in text
    assert "![cls-x-types](cls-x-types.png)" in text


def test_terminal_table():
    assert "50.0 [25.0, 100.0]" in text_of(report.bench_table("cls", "StepCls", SCORES))


def test_the_published_stand_beside_real_runs_alone():
    assert "Claude-Opus-5 | 84.39 | 75.09 | 71.25" in report.markdown_report({}, {"data": "somewhere"})
    assert "Claude-Opus-5" not in report.markdown_report({}, {"data": "simulated"})
