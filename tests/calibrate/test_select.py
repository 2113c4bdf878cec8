"""`calibrate select`, `calibrate prior` and the controls of `risk-control`, as a user sees them."""

import json

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from scipy.special import expit

from densecal.calibrate.folders import MapData
from densecal.calibrate.select import Selection, select, split
from densecal.errors import InputError
from densecal.metrics import calibration_errors
from densecal.posthoc import create, load
from tests.running import run

SIZE = (32, 40)
K = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Over-confident maps of one logit (`maps`, `masks`) and of three classes (`soft`, `labels`), 24 images each."""
    root = tmp_path_factory.mktemp("select")
    for name in ("maps", "masks", "soft", "labels", "rare"):
        (root / name).mkdir()
    rng = np.random.default_rng(0)
    for i in range(24):
        z = gaussian_filter(rng.normal(size=SIZE), 2) * 10 - 0.5
        np.save(root / "maps" / f"{i:02}.npy", expit(2.0 * z).astype(np.float32))
        Image.fromarray(rng.random(SIZE) < expit(z)).save(root / "masks" / f"{i:02}.png")
        z = np.stack([gaussian_filter(rng.normal(size=SIZE), 2) for _ in range(K)]) * 10
        p = np.exp(z) / np.exp(z).sum(0)
        labels = (p.cumsum(0) > rng.random(SIZE)).argmax(0).astype(np.uint8)
        bold = np.exp(1.8 * z)
        np.save(root / "soft" / f"{i:02}.npy", (bold / bold.sum(0)).astype(np.float32))
        Image.fromarray(labels).save(root / "labels" / f"{i:02}.png")
    return root


def test_select_keeps_the_best_of_all_that_apply(folder, tmp_path):
    out, table = tmp_path / "cal.json", tmp_path / "table.json"
    code, text, _ = run("calibrate", "select", folder / "maps", folder / "masks", "--out", out, "--json", table)
    assert code == 0
    content = json.loads(table.read_text())
    methods = [candidate["method"] for candidate in content["candidates"]]
    assert {"none", "temperature", "platt", "spline", "venn-abers", "class-temperature"} <= set(methods)
    assert methods[0] == content["best"] == json.loads(out.read_text())["method"]
    nll = [candidate["nll"] for candidate in content["candidates"]]
    assert nll == sorted(nll)
    by_method = {candidate["method"]: candidate for candidate in content["candidates"]}
    assert by_method["temperature"]["nll"] < by_method["none"]["nll"] - 0.02
    assert by_method["temperature"]["flip_rate"] == 0 < by_method["platt"]["flip_rate"]
    for method in methods:
        assert method in text


def test_select_for_classes(folder, tmp_path):
    out = tmp_path / "cal.json"
    arguments = ["--classes", K, "--methods", "temperature,vector,argmax-preserving", "--out", out]
    code, text, _ = run("calibrate", "select", folder / "soft", folder / "labels", *arguments)
    assert code == 0
    assert load(out).num_classes == K
    assert "flips" in text


def test_figures_are_those_of_images_that_were_not_fitted_on(folder):
    """Against fits and judgements written out, fold by fold."""
    data = MapData(folder / "maps", folder / "masks")
    result = select(data, ["temperature", "histogram"], folds=3)
    parts = np.array(split([str(i) for i in range(24)], 3))
    maps = np.array([np.load(pair.prediction) for pair in data.pairs])
    masks = np.array([np.asarray(Image.open(pair.mask)) for pair in data.pairs])
    clipped = np.clip(maps.astype(float), 1e-7, 1 - 1e-7)
    z = np.log(clipped) - np.log1p(-clipped)
    for method in ("temperature", "histogram", "none"):
        p = maps.astype(float)
        for part in range(3 if method != "none" else 0):
            calibrator = create(method)
            calibrator.fit(lambda part=part: [(z[parts != part][:, None], masks[parts != part][:, None])])
            p[parts == part] = calibrator(z[parts == part][:, None])[:, 0]
        expected = calibration_errors(p, masks)
        candidate = next(one for one in result.candidates if one.method == method)
        assert candidate.nll == pytest.approx(expected.nll, abs=1e-6)
        assert candidate.ece == pytest.approx(expected.ece_ew, abs=1e-6)
        assert candidate.flip_rate == pytest.approx(((p > 0.5) != (maps > 0.5)).mean(), abs=1e-6)


def test_groups_stay_together(folder):
    units = [name for name in "abcdef" for _ in range(4)]
    parts = split(units, 3)
    assert len({(unit, part) for unit, part in zip(units, parts, strict=True)}) == 6
    assert sorted(parts) == [0] * 8 + [1] * 8 + [2] * 8
    result = select(MapData(folder / "maps", folder / "masks"), ["temperature"], groups=units)
    assert (result.groups, result.folds) == (6, 5)


def test_what_cannot_be_fitted_is_last_and_says_why(folder, monkeypatch):
    from densecal.posthoc.platt import PlattScaling

    def fail(self, data, ignore_index):
        raise InputError("platt", "no luck", "luck")

    monkeypatch.setattr(PlattScaling, "_fit", fail)
    result = select(MapData(folder / "maps", folder / "masks"), ["platt", "temperature"])
    assert result.candidates[-1].method == "platt"
    assert "no luck" in result.candidates[-1].problem
    assert isinstance(result, Selection)
    assert result.best == "temperature"


def test_calibrated_maps_are_best_as_they_are(folder, tmp_path):
    """Exit code 3, and no calibrator: ten bins lose what maps that are right say."""
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    p = np.linspace(0.02, 0.98, 25)[:, None] * np.ones((25, 100))
    for i in range(4):
        np.save(tmp_path / "maps" / f"{i}.npy", p.astype(np.float32))
        hits = np.arange(100)[None] < np.rint(100 * p[:, :1])
        Image.fromarray(hits).save(tmp_path / "masks" / f"{i}.png")
    code, _, error = run(
        "calibrate", "select", tmp_path / "maps", tmp_path / "masks", "--methods", "histogram", "--out",
        tmp_path / "c.json",
    )  # fmt: skip
    assert code == 3
    assert "no calibrator lowers the NLL" in error
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "selective"], "selective, which does not apply here"),
        (["--methods", "nothing"], "--methods: 'nothing'"),
        (["--groups", "(x)"], "no group"),
    ],
)
def test_bad_options_of_select(folder, tmp_path, options, message):
    out = tmp_path / "c.json"
    code, _, error = run("calibrate", "select", folder / "maps", folder / "masks", "--out", out, *options)
    assert code == 2
    assert message in error


# ------------------------------------------------------------------ prior shift


def test_prior_moves_the_frequency_and_says_what_it_assumes(folder, tmp_path):
    """The target has the images of the source whose foreground is rare."""
    rng = np.random.default_rng(2)
    target = tmp_path / "target"
    target.mkdir()
    for i in range(6):
        y = rng.random(SIZE) < 0.1
        # calibrated where half of the pixels are foreground: ln of N(1, 1) over N(-1, 1) is 2 x
        np.save(target / f"{i}.npy", expit(2 * (rng.normal(size=SIZE) + np.where(y, 1, -1))).astype(np.float32))
    source = tmp_path / "source"
    masks = tmp_path / "masks"
    for path in (source, masks):
        path.mkdir()
    for i in range(6):
        y = rng.random(SIZE) < 0.5
        np.save(source / f"{i}.npy", expit(2 * (rng.normal(size=SIZE) + np.where(y, 1, -1))).astype(np.float32))
        Image.fromarray(y).save(masks / f"{i}.png")
    code, text, error = run("calibrate", "prior", source, masks, target, "--out", tmp_path / "prior.json")
    assert code == 0
    assert "assumes that only the frequencies of the classes differ" in error
    calibrator = load(tmp_path / "prior.json")
    assert calibrator.target[1] == pytest.approx(0.1, abs=0.02)
    assert calibrator.source[1] == pytest.approx(0.5, abs=0.02)
    assert "foreground" in text


def test_prior_of_classes(folder, tmp_path):
    code, text, _ = run(
        "calibrate", "prior", folder / "soft", folder / "labels", folder / "soft", "--classes", K, "--out",
        tmp_path / "p.json",
    )  # fmt: skip
    assert code == 0
    assert load(tmp_path / "p.json").target.sum() == pytest.approx(1)
    assert text.count("class ") == K


# ------------------------------------------------------------------ risk control


def control(folder, tmp_path, *options, classes=False):
    maps, masks = ("soft", "labels") if classes else ("maps", "masks")
    more = ["--classes", K] if classes else []
    code, text, error = run(
        "risk-control", folder / maps, folder / masks, *more, "--json", tmp_path / "r.json", *options
    )  # fmt: skip
    return code, text, error, json.loads((tmp_path / "r.json").read_text()) if code != 2 else None


def test_risk_control_with_delta_is_stricter_than_on_average(folder, tmp_path):
    _, _, _, average = control(folder, tmp_path, "--alpha", "0.3")
    code, text, _, surely = control(folder, tmp_path, "--alpha", "0.3", "--delta", "0.1", "--force")
    assert code == 0
    assert surely["threshold"] < average["threshold"]
    assert surely["p_value"] <= 0.1
    assert "with probability 90 %" in text


def test_precision_is_controlled(folder, tmp_path):
    code, text, _, result = control(folder, tmp_path, "--control", "precision", "--alpha", "0.35")
    assert code == 0
    assert (result["kind"], result["delta"]) == ("precision", 0.1)
    assert result["false_discovery_rate"] < 0.35
    assert "false-discovery rate" in text


@pytest.mark.parametrize("score", ["thr", "aps", "raps"])
def test_sets_of_classes(folder, tmp_path, score):
    code, text, _, result = control(folder, tmp_path, "--control", "sets", "--score", score, classes=True)
    assert code == 0
    assert result["coverage"] >= 0.9
    assert 1 <= result["set_size"] < K
    assert f"({score})" in text


def test_margins_around_masks(folder, tmp_path):
    code, text, _, result = control(folder, tmp_path, "--control", "margin", "--coverage", "0.8", "--shape", "square")
    assert code == 0
    assert result["covered"] >= 0.9 > result["covered_before"]
    assert result["pixels"] == round(result["pixels"]) >= 1
    assert "masks grow by" in text


@pytest.mark.parametrize(
    ("options", "way"),
    [
        (["--delta", "0.1"], "calling every pixel foreground"),
        (["--control", "margin"], "covering the whole image"),
    ],
)
def test_a_useless_promise_says_so_with_the_smallest_alpha_that_is_of_use(folder, tmp_path, options, way):
    """Of 24 images, 8 have maps that see nothing."""
    (tmp_path / "maps").mkdir()
    for i, file in enumerate(sorted((folder / "maps").iterdir())):
        np.save(tmp_path / "maps" / file.name, np.load(file) * (i >= 8))
    (tmp_path / "masks").symlink_to(folder / "masks")
    code, _, error, result = control(tmp_path, tmp_path, "--alpha", "0.2", *options)
    assert (code, result["trivial"]) == (3, True)
    start = f"densecal: risk-control: alpha 0.2 is met only by {way}, which is of no use; the smallest alpha"
    assert error.strip() == f"{start} without that is {result['smallest_alpha']:g}"
    again = control(tmp_path, tmp_path, "--alpha", f"{result['smallest_alpha']:g}", *options, "--force")
    assert (again[0], again[3]["trivial"]) == (0, False)


@pytest.mark.parametrize(
    ("options", "classes", "message"),
    [
        (["--control", "sets"], False, "--control sets: one foreground probability"),
        (["--control", "margin"], True, "--classes: margin with 3 classes"),
        (["--delta", "0.1"], True, "--classes: misses with 3 classes"),
        (["--control", "margin", "--delta", "0.1"], False, "--delta: 0.1; expected nothing"),
        (["--control", "sets", "--score", "best"], True, "expected one of thr, aps, raps"),
        (["--control", "margin", "--coverage", "2"], False, "coverage: 2.0"),
        (["--alpha", "0.05", "--delta", "0.1"], False, "24 images for alpha 0.05"),
    ],
)
def test_options_that_make_no_sense(folder, tmp_path, options, classes, message):
    code, _, error, _ = control(folder, tmp_path, *options, classes=classes)
    assert code == 2
    assert message in error


# ------------------------------------------------------------------ one region of several


@pytest.fixture(scope="module")
def regions(folder, tmp_path_factory):
    """Sigmoids and masks of two regions (`maps`, `masks`), of which the second is that of `folder`."""
    root = tmp_path_factory.mktemp("regions")
    (root / "maps").mkdir()
    (root / "masks").mkdir()
    for path in sorted((folder / "maps").iterdir()):
        p, y = np.load(path), np.asarray(Image.open(folder / "masks" / f"{path.stem}.png"))
        np.save(root / "maps" / path.name, np.stack([np.full_like(p, 0.3), p]))
        np.save(root / "masks" / path.name, np.stack([np.zeros_like(y), y]).astype(np.uint8))
    return root


REGION = ("--multilabel", "--classes", "2", "--region", "1")


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("risk-control", ("--alpha", "0.3")),
        ("risk-control", ("--alpha", "0.35", "--control", "precision")),
        ("risk-control", ("--control", "margin", "--coverage", "0.8")),
        ("calibrate select", ("--methods", "temperature,platt")),
    ],
)
def test_a_region_is_treated_as_foreground_maps_are(folder, regions, tmp_path, command, options):
    results = []
    for root, more in ((folder, ()), (regions, REGION)):
        table = tmp_path / f"{root.name}.json"
        out = ("--out", tmp_path / "c.json", "--force") if command.endswith("select") else ()
        code, text, error = run(*command.split(), root / "maps", root / "masks", *options, *more, *out, "--json", table)
        assert code == 0, error
        results.append((text, json.loads(table.read_text())))
    assert results[0] == results[1]


def test_the_prior_of_a_region(folder, regions, tmp_path):
    written = []
    for root, more in ((folder, ()), (regions, REGION)):
        out = tmp_path / f"{root.name}.json"
        code, _, error = run("calibrate", "prior", root / "maps", root / "masks", root / "maps", "--out", out, *more)
        assert code == 0, error
        written.append(json.loads(out.read_text()))
    assert written[0] == written[1]


def test_a_target_with_other_classes_is_refused(folder, tmp_path):
    arguments = (folder / "soft", folder / "labels", folder / "maps", "--classes", K, "--out", tmp_path / "p.json")
    code, _, error = run("calibrate", "prior", *arguments)
    assert code == 2
    assert "00.npy" in error


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("risk-control", ("--multilabel", "--classes", "2", "--control", "margin"), "--region with one of 0, 1"),
        ("risk-control", ("--multilabel", "--classes", "2", "--control", "sets"), "regions, which may overlap"),
        ("risk-control", (*REGION, "--control", "sets"), "regions, which may overlap"),
        ("risk-control", ("--region", "1", "--control", "margin"), "maps of several regions, or --multilabel as well"),
        ("risk-control", ("--format", "nobody", "--control", "margin"), "--format: 'nobody'"),
        ("calibrate select", ("--multilabel", "--classes", "2"), "--region with one of 0, 1"),
        ("calibrate select", ("--format", "nobody"), "--format: 'nobody'"),
        ("calibrate prior", ("--multilabel", "--classes", "2"), "--region with one of 0, 1"),
        ("calibrate prior", ("--format", "monai"), "no files of"),
    ],
)
def test_regions_and_formats_are_refused_in_one_line(regions, tmp_path, command, options, message):
    target = (regions / "maps",) if command.endswith("prior") else ()
    out = ("--out", tmp_path / "c.json") if command.startswith("calibrate") else ()
    code, text, error = run(*command.split(), regions / "maps", regions / "masks", *target, *options, *out)
    assert (code, text) == (2, "")
    assert error.count("\n") == 1
    assert message in error


def test_format_of_masks_does_not_concern_a_target_without_masks(folder, tmp_path):
    """`--format` may name a layout of masks; maps of the target have none."""
    labels = tmp_path / "VOC2012" / "SegmentationClass"
    labels.mkdir(parents=True)
    soft = tmp_path / "soft"
    soft.mkdir()
    rng = np.random.default_rng(3)
    for i in range(3):
        p = rng.dirichlet(np.ones(21), size=(8, 8)).transpose(2, 0, 1)
        np.save(soft / f"{i}.npy", p.astype(np.float32))
        Image.fromarray((p.cumsum(0) > rng.random((8, 8))).argmax(0).astype(np.uint8)).save(labels / f"{i}.png")
    code, _, error = run("calibrate", "prior", soft, labels, soft, "--format", "voc", "--out", tmp_path / "p.json")
    assert code == 0, error
    assert load(tmp_path / "p.json").num_classes == 21
