"""The record: to JSON and back, never changed, and errors that name the file and the key."""

import dataclasses
import json
import math
from typing import Any

import jsonschema
import pytest

from densecal.errors import InputError
from densecal.evaluation.case_figures import Cases, CaseScores, CaseTrust, ClassCases, RiskCoverage
from densecal.evaluation.measures import Consistency, Region, SmoothDiagram
from densecal.evaluation.record import (
    SCHEMA,
    Calibration,
    ClassCurve,
    ConfidenceHistogram,
    Curve,
    LogitCounts,
    OutOfDistribution,
    PairedDifference,
    Record,
    RecordSettings,
    Reliability,
    Repair,
    SegmentationCurves,
    SkippedFile,
    Thresholds,
    TwoHistograms,
    from_file,
    to_file,
)
from densecal.evaluation.schema import record_schema
from densecal.io.atomic import round_floats
from densecal.metrics.class_tables import ClassFigures
from densecal.metrics.cost import ExpectedCost
from tests.records import small_record


def full_record() -> Record:
    """Every field has a value that differs from its default."""
    return small_record(
        calibration={"ece_ew": 0.25, "oe_ew": 0.0},
        entropy=0.0,
        name="aslp-mc",
        skipped=(SkippedFile("a.png", "unreadable; expected an image"),),
        warnings=("2 maps differ in size from their mask",),
        segmentation={"miou": 0.5, "iou": (0.25, 0.75)},
        reliability=Reliability(
            2,
            (60, 40),
            (0.25, 0.75),
            (0.5, 0.5),
            ConfidenceHistogram((100,), (90,)),
            (
                ClassCurve(
                    (60, 40), (0.25, 0.75), (0.5, 0.5), 0.125, ClassFigures(0.5, 0.5, 0.1, 0.1, 0.2, 0.1, 0.4, 0.2)
                ),
            ),
            Curve((1,), (0.5,), (0.5,)),
            SmoothDiagram(0.125, 0.124, (0.0, 1.0), (0.5, 1.5)),
            SmoothDiagram(0.25, 0.25, (0.25, 1.0), (0.75, 1.25)),
            Consistency((0.0, 0.25), (0.5, 1.0), 0.01, 0.02, 0.5),
        ),
        regions=(Region("small_objects", 2, 50, {"ece_ew": 0.25}, {"ece_ew": (0.125, 0.5)}, 10.5, 20.0),),
        costs=(ExpectedCost(5.0, 1.0, 0.125, 0.25, 0.5, 0.125, 0.5, 0.75, 1.0, (0.125, 0.5)),),
        settings=RecordSettings(2, 3, 255),
        thresholds=Thresholds((3, 2), (1, 0), 3, 4),
        curves=SegmentationCurves((0.5,), (0.5,), (0.5,), (0.5,)),
        groups=4,
        logits=LogitCounts(12.0, (3, 1), (0, 3)),
        repair=Repair(2.0, 21, 0.25, 0.125),
        ood=(
            OutOfDistribution(
                "textures", 0.75, 0.5, TwoHistograms((1, 2), (3, 4)), TwoHistograms((5,), (6,)), small_record()
            ),
        ),
        calibrator="none",
        segmentation_ci={"dice_image_mean": (0.25, 0.75)},
        more_bins={"15": Calibration({"ece_ew": 0.5}, {"ece_ew": (0.25, 0.75)})},
        cases=Cases(
            "ml",
            1.5,
            (ClassCases(1, 3, 1, 0, 2, {"dice": 0.5}, {"dice": (0.25, 0.75)}),),
            CaseTrust(3, 0.5, 0.25, {"mean": RiskCoverage(0.375, (0.5, 0.25), (0.125, 0.625))}),
            (CaseScores("a", (0.5,), (2.0,), (0.5,), (1.5,), (1.25,), (0.75, 0.5)),),
        ),
    )


def through_a_file(content: Any) -> Any:
    return json.loads(json.dumps(round_floats(content), allow_nan=False))


@pytest.mark.parametrize("make", [small_record, full_record])
def test_a_record_comes_back_from_json_as_it_was(make):
    assert Record.from_json(through_a_file(make().to_json()), "a.json") == make()


def test_a_file_with_the_groups_of_sizes_that_are_no_longer_written_still_loads():
    group = {"name": "small", "above": 0.0, "up_to": 0.05, "images": 3, "ece_ew": 0.25, "gap": -0.125}
    content = through_a_file({**full_record().to_json(), "sizes": [group]})
    assert Record.from_json(content, "a.json") == full_record()


def test_nan_is_null_in_a_file_and_nan_again_in_a_record():
    content = through_a_file(small_record({"ece_ew": math.nan, "oe_ew": 0.5}).to_json())
    assert content["calibration"]["ece_ew"] is None
    calibration = Record.from_json(content, "a.json").calibration
    assert math.isnan(calibration["ece_ew"])
    assert calibration["oe_ew"] == 0.5


def test_a_record_cannot_be_changed():
    record = full_record()
    for part, field in ((record, "name"), (record.joint, "cells"), (record.calibration, "figures")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field, None)


def test_calibration_is_a_mapping_of_its_figures():
    calibration = full_record().calibration
    assert dict(calibration) == {"ece_ew": 0.25, "oe_ew": 0.0}
    assert len(calibration) == 2


def test_a_figure_that_a_record_lacks_is_nan():
    record = full_record()
    assert record.figure("calibration", "ece_ew") == 0.25
    assert math.isnan(record.figure("calibration", "brier"))
    assert math.isnan(record.figure("segmentation", "iou"))  # one value per class is not a figure


def test_what_a_record_lacks_is_not_written():
    keys = set(dataclasses.replace(small_record(), entropy=None).to_json())
    assert keys.isdisjoint({"thresholds", "curves", "entropy", "ood", "calibrator", "more_bins"})
    assert {"schema", "skipped", "warnings", "settings"} <= keys


DAMAGES = {
    "calibration": ([], r"calibration: \[\]; expected an object"),
    "name": (3, "name: 3; expected text"),
    "images": (2.5, "images: 2.5; expected a whole number"),
    "pixels": (True, "pixels: True; expected a whole number"),
    "warnings": ("none", "warnings: 'none'; expected a list"),
    "segmentation": ({"f_max": "high"}, "segmentation.f_max: 'high'; expected a number"),
    "joint": ({"cells": 100}, "joint.counts: missing; expected a list"),
    "skipped": ([{"file": "a.png"}], "skipped.0.reason: missing; expected text"),
    "more_bins": ({"15": {"ece_ew": 0.5}}, "more_bins.15.ci: missing; expected an object"),
    "entropy": ({"histogram": [1], "images": [1 << 1024]}, "entropy.images.0: an integer of 1,025 bits"),
}


@pytest.mark.parametrize("key", DAMAGES)
def test_an_error_names_the_file_and_the_key(key):
    value, message = DAMAGES[key]
    content = through_a_file(full_record().to_json()) | {key: value}
    with pytest.raises(InputError, match=rf"^runs/a\.json: {message}"):
        Record.from_json(content, "runs/a.json")


@pytest.mark.parametrize("key", ["name", "dataset", "images", "pixels", "calibration", "reliability", "joint"])
def test_a_missing_key_is_named(key):
    content = through_a_file(small_record().to_json())
    del content[key]
    with pytest.raises(InputError, match=rf"^a\.json: {key}: missing; expected"):
        Record.from_json(content, "a.json")


def test_an_interval_has_two_ends():
    content = through_a_file(small_record().to_json())
    content["calibration"]["ci"] = {"ece_ew": [0.1, 0.2, 0.3]}
    with pytest.raises(InputError, match=r"^a\.json: calibration\.ci\.ece_ew: 3 values; expected 2"):
        Record.from_json(content, "a.json")


@pytest.mark.parametrize("content", [[], None, "text"])
def test_what_is_not_an_object_is_refused(content):
    with pytest.raises(InputError, match=r"^a\.json: .*; expected an object"):
        Record.from_json(content, "a.json")


def test_files_of_the_first_version_have_no_schema_number_and_load():
    content = through_a_file(full_record().to_json())
    assert content.pop("schema") == SCHEMA
    assert Record.from_json(content, "a.json") == full_record()


def test_files_of_a_later_schema_are_refused():
    content = {**small_record().to_json(), "schema": SCHEMA + 1}
    with pytest.raises(InputError, match=rf"^a\.json: schema: {SCHEMA + 1}; expected {SCHEMA}, the layout"):
        Record.from_json(content, "a.json")


def test_unknown_keys_are_ignored():
    content = {**through_a_file(small_record().to_json()), "from_the_future": 1}
    assert Record.from_json(content, "a.json") == small_record()


def test_a_file_holds_one_record_or_several_with_their_differences():
    records = [full_record(), small_record(name="other")]
    paired = [PairedDifference("set", "aslp-mc", "other", {"ece_ew": -0.5}, {"ece_ew": (-0.75, -0.25)})]
    assert from_file(through_a_file(to_file(records, paired)), "a.json") == (records, paired)
    assert to_file(records[:1]) == records[0].to_json()
    assert from_file(through_a_file(to_file(records[:1])), "a.json") == (records[:1], [])


def test_histograms_in_and_out_of_distribution_are_written_as_in_and_out():
    [ood] = full_record().to_json()["ood"]
    assert ood["entropy"] == {"in": [1, 2], "out": [3, 4]}


def test_an_error_in_one_of_several_records_names_which():
    content = through_a_file(to_file([small_record(), small_record()]))
    content["evaluations"][1]["images"] = None
    with pytest.raises(InputError, match=r"^a\.json: evaluations\.1: images: None; expected a whole number"):
        from_file(content, "a.json")
    with pytest.raises(InputError, match=r"^a\.json: evaluations: 3; expected a list"):
        from_file({"evaluations": 3}, "a.json")


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = record_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    "make", [small_record, full_record, lambda: small_record({"ece_ew": math.nan}, entropy=math.nan)]
)
def test_written_json_is_valid_by_the_schema(validator, make):
    validator.validate(through_a_file(make().to_json()))


def test_every_key_of_a_record_is_in_the_schema(validator):
    assert set(validator.schema["$defs"]["Record"]["properties"]) == set(full_record().to_json())


@pytest.mark.parametrize("key", [key for key in DAMAGES if key != "entropy"])  # the schema bounds no numbers
def test_the_schema_refuses_what_the_reader_refuses(validator, key):
    content = through_a_file(full_record().to_json()) | {key: DAMAGES[key][0]}
    assert not validator.is_valid(content)
    assert not validator.is_valid({**through_a_file(small_record().to_json()), "schema": SCHEMA + 1})
