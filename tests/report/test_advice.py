"""The sentences at the top of the page: what they say follows from the figures, and they say nothing unsure."""

from dataclasses import replace

import pytest

from densecal.evaluation.measures import Region
from densecal.evaluation.record import Calibration, PairedDifference, Repair
from densecal.report.advice import all_advice, comparisons
from tests.records import small_record


def record(ece=0.02, confidence=0.97, accuracy=0.95, boundary=0.021, **fields):
    figures = {"ece_ew": ece, "mean_confidence": confidence, "accuracy": accuracy, "ece_boundary_5": boundary}
    return replace(small_record(), calibration=Calibration(figures, {"ece_ew": (0.018, 0.023)}), **fields)


def text(*records):
    (advice,) = all_advice(records)
    return " ".join(advice.sentences)


def test_an_over_confident_model_is_called_so_with_its_interval():
    assert text(record()) == (
        "Over-confident by 2.0 points: mean confidence is 97.0 %, but 95.0 % of the pixels are right "
        "(ECE 2.0 %, 95 % interval 1.8 to 2.3 %)."
    )


@pytest.mark.parametrize(
    ("figures", "beginning"),
    [
        ({"confidence": 0.93}, "Under-confident by 2.0 points"),
        ({"confidence": 0.951}, "Over-confident in some places and under-confident in others"),
        ({"ece": 0.003, "confidence": 0.953}, "Well calibrated: confidence and accuracy differ by 0.30 points"),
    ],
)
def test_other_models_are_called_what_they_are(figures, beginning):
    assert text(record(**figures)).startswith(beginning)


def test_a_temperature_that_helps_is_named_with_the_command():
    (advice,) = all_advice([record(repair=Repair(2.04, 1000, 0.0212, 0.0052))])
    assert advice.sentences[1] == (
        "A temperature of 2 brings the ECE from 2.1 to 0.52 % on images that it was not fitted on (each half of these "
        "with the temperature of the other)."
    )
    assert advice.command.startswith("densecal calibrate fit temperature")


def test_a_temperature_that_does_not_help_is_not_recommended():
    (advice,) = all_advice([record(repair=Repair(1.1, 1000, 0.0212, 0.02))])
    assert "one temperature does not repair it" in advice.sentences[1]
    assert advice.command == ""


def test_places_are_named_only_where_errors_are_larger():
    errors = {"small_objects": (9, 0.03), "large_objects": (30, 0.019), "hard_images": (13, 0.09)}
    regions = tuple(Region(name, images, 100, {"ece_ew": ece}, {}) for name, (images, ece) in errors.items())
    assert "Errors are largest" not in text(record())
    assert text(record(boundary=0.11, regions=regions)).endswith(
        "Errors are largest within 5 pixels of boundaries (ECE 11.0 %) and in images with small objects "
        "(ECE 3.0 %, 9 images)."
    )
    assert "Errors" not in text(record(ece=0.004, boundary=0.11, regions=regions))


def test_of_many_methods_the_best_and_the_worst_speak():
    records = [replace(record(ece=0.01 * (i + 1)), name=f"m{i}") for i in range(9)]
    assert [advice.method for advice in all_advice(records)] == ["m0", "m8"]


@pytest.mark.parametrize(
    ("difference", "interval", "expected"),
    [
        (-0.012, (-0.015, -0.009), "a is better calibrated than b on d: its ECE is lower by 1.2 points on the same "
         "images (95 % interval 0.90 to 1.5)."),
        (0.012, (0.009, 0.015), "b is better calibrated than a"),
        (0.001, (-0.002, 0.003), "a and b on d: no clear difference in calibration"),
    ],
)  # fmt: skip
def test_two_methods_are_compared_by_the_interval_of_their_difference(difference, interval, expected):
    pair = PairedDifference("d", "a", "b", {"ece_ew": difference}, {"ece_ew": interval})
    assert comparisons([pair])[0].startswith(expected)
