"""Progress: reported per item, and under one title."""

import pytest

from densecal.runtime.progress import retitle, silent, track


class Reports(list):
    def __call__(self, title: str, done: int, total: int, /, **figures: float) -> None:
        self.append((title, done, total, figures))


def test_an_item_is_reported_once_it_is_done():
    reports = Reports()
    items = track("ab", "Reading", reports)
    assert next(items) == "a"
    assert reports == []
    assert next(items) == "b"
    assert reports == [("Reading", 1, 2, {})]
    assert list(items) == []
    assert reports == [("Reading", 1, 2, {}), ("Reading", 2, 2, {})]


def test_the_total_of_an_iterator_is_given():
    reports = Reports()
    assert list(track(iter("ab"), "Reading", reports, total=2)) == ["a", "b"]
    assert reports[-1] == ("Reading", 2, 2, {})
    with pytest.raises(AssertionError):
        next(track(iter("ab"), "Reading", reports))


def test_a_report_under_another_title_keeps_its_figures():
    reports = Reports()
    retitle(reports, "Fitting")("Reading", 1, 3, loss=0.5)
    assert reports == [("Fitting", 1, 3, {"loss": 0.5})]


def test_silent_prints_nothing(capsys):
    silent("Reading", 1, 2, loss=0.5)
    assert capsys.readouterr() == ("", "")
