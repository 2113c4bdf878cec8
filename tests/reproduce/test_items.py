"""Items as data: every row exists, cells are shared, full scale is the paper's setting, missing data is named."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.benchmark.plan import Plan
from densecal.data import open_source
from densecal.data.published_lists import published_list
from densecal.errors import InputError
from densecal.reproduce import Scale, load_items, reproduce
from densecal.reproduce.datasets import SETS, SetFiles, find, missing_textures, thin
from densecal.reproduce.items import MAPS, find_item, load_scale, load_settings
from densecal.reproduce.published import HOMES, evaluate_maps
from densecal.reproduce.results import Results
from densecal.reproduce.runner import Workplace
from densecal.reproduce.scaled import describe_config
from densecal.reproduce.smoke_data import NETWORKS, write_data
from tests.running import run

MATRICES = sorted({source.matrix for item in load_items().values() for source in item.sources().values()} - {MAPS})


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Every data set of the paper, generated, under the names that users have them."""
    folder = tmp_path_factory.mktemp("sets") / "data"
    write_data(folder, load_scale(Scale.smoke))
    return folder


def cells_of(name: str, scale: Scale, data: Path, root: Path) -> dict[str, object]:
    """The cells that an item needs, by matrix and label."""
    work = Workplace(Scale.full, data, root)
    work.scale, work.settings = scale, load_scale(scale)
    cells = {}
    sources = find_item(name).sources().values()
    for matrix in {source.matrix for source in sources} - {MAPS}:
        labels = {source.label for source in sources if source.matrix == matrix}
        plan = Plan(work.matrix(matrix, labels), root / matrix)
        cells |= {(matrix, cell.label): cell for cell in plan.untuned}
        assert labels <= {cell.label for cell in plan.untuned}
    return cells


@pytest.mark.parametrize("scale", [Scale.full, Scale.smoke, Scale.cpu])
@pytest.mark.parametrize("name", load_items())
def test_every_row_of_an_item_is_a_cell_with_valid_settings(name, scale, data, tmp_path):
    cells = cells_of(name, scale, data, tmp_path)
    assert cells or not find_item(name).rows


def test_items_share_their_cells(data, tmp_path):
    first = cells_of("table-1", Scale.full, data, tmp_path)
    for other in ("table-3", "table-2", "sweep", "convergence", "eta-lambda", "slp-calibration", "time"):
        cells = cells_of(other, Scale.full, data, tmp_path)
        shared = first.keys() & cells.keys()
        assert ("sod", "bce") in shared
        for key in shared:
            assert (cells[key].folder, cells[key].digest) == (first[key].folder, first[key].digest)
    curve = cells_of("slp-calibration", Scale.full, data, tmp_path)
    ablation = cells_of("table-3", Scale.full, data, tmp_path)
    assert {("sod", "slp-hi alpha=0.01"), ("sod", "slp-dm alpha=0.03")} <= curve.keys() & ablation.keys()


def test_full_scale_is_the_papers_setting(data, tmp_path):
    cells = {label: cell.config for (_, label), cell in cells_of("table-3", Scale.full, data, tmp_path).items()}
    for config in cells.values():
        assert (config.data.size, config.data.augment) == (384, "paper")
        assert (config.model.arch, config.model.options) == ("paper-unet", {})
        assert (config.optim.optimizer, config.optim.lr, config.optim.epochs) == ("adam", 2.5e-5, 30)
        assert (config.optim.schedule, config.optim.batch, config.optim.ema) == ("paper", 10, 0)
    assert len(cells) == 11
    for label, technique in (("aslp-mc-hi", "hi"), ("aslp-mc-si", "si"), ("aslp-mc-m", "m"), ("aslp-mc-dm", "dm")):
        options = cells[label].method.options
        assert (options["eta"], options["lam"], options["technique"]) == (0.002, 2000, technique)
        assert (options["grad_norm"], options["schedule"]) == ("paper", "two-stage")
    for label, alpha in (("slp-hi alpha=0.01", 0.01), ("slp-si alpha=0.02", 0.02), ("slp-m alpha=0.03", 0.03)):
        assert cells[label].method.options["alpha"] == alpha
    assert cells["label-smoothing"].method.options["beta"] == 0.03
    cod = cells_of("camouflage", Scale.full, data, tmp_path)["cod", "bce"].config
    assert (cod.optim.epochs, cod.data.validation) == (50, 600)
    backbones = [cells_of(name, Scale.full, data, tmp_path)[name, "bce"].config for name in ("vgg16", "swin")]
    assert [config.model.encoder.partition("_")[0].partition(".")[0] for config in backbones] == ["vgg16", "swin"]


def test_adaptive_rows_start_from_cross_entropy(data, tmp_path):
    for name in ("table-3", "convergence", "networks", "camouflage", "smoke", "semantic", "vgg16", "swin"):
        cells = cells_of(name, Scale.full, data, tmp_path)
        for (matrix, label), cell in cells.items():
            adaptive = label.startswith(("aslp", "als", "unnormalised"))
            assert cell.start == (cells[matrix, "bce"] if adaptive else None), (name, label)


def test_the_list_names_every_item():
    code, out, _ = run("reproduce", "--list")
    assert code == 0
    assert re.findall(r"^(\S+)  ", out, re.MULTILINE) == list(load_items())


@pytest.mark.parametrize("name", load_items())
def test_an_item_without_its_data_fails_with_one_line_and_writes_nothing(name, tmp_path):
    code, out, err = run("reproduce", name, "--data", tmp_path / "none", "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    dataset = SETS[find_item(name).data[0]]
    assert f"densecal: reproduce {name}: {dataset.name}: not in {tmp_path / 'none'}; expected" in err
    assert str(tmp_path / "none" / dataset.folder) in err
    assert dataset.layout.home in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-9", "--out", "x"], "item: 'table-9'; expected one of table-1, table-2"),
        (["table-1", "--scale", "huge", "--out", "x"], "--scale: 'huge'; expected one of full, cpu, smoke"),
        (["table-1"], "--out: nothing; expected a folder"),
        ([], "item: nothing; expected the name of a table or figure"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    code, _, err = run("reproduce", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


def test_rows_whose_data_is_there_are_run_and_the_rest_is_named(data, tmp_path):
    part = tmp_path / "data"
    shutil.copytree(data / "ECSSD", part / "ECSSD")
    shutil.copytree(data / MAPS / "EDN" / "ECSSD", part / MAPS / "EDN" / "ECSSD")
    code, _, err = run("reproduce", "table-1", "--data", part, "--out", tmp_path / "out")
    assert code == 0, err
    missing = re.findall(r"^missing: (.*): not in", err, re.MULTILINE)
    assert missing == ["DUTS-TR", "DUTS-TE", "DUT-OMRON", "PASCAL-S", "SOD", "HKU-IS", "published maps"]
    assert all(f"{name} ({home})" in err for name, home in HOMES.items() if name != "EDN")
    assert f"expected {part / MAPS}/NETWORK/DATASET/ of MSRNet (" in err
    assert "EDN (" not in err
    assert f"expected {part / 'DUTS-TR'}, available at http://saliencydetection.net/duts/" in err
    table = (tmp_path / "out" / "full" / "table-1" / "table.md").read_text()
    assert re.findall(r"^\| (\S+) \| ours", table, re.MULTILINE) == ["EDN"]
    assert "DUTS-TR: not in" in table
    # what was evaluated is not evaluated again, unless the maps change
    kept = tmp_path / "out" / "full" / "published" / "EDN" / "ECSSD.json"
    before = kept.stat().st_mtime_ns
    files = SetFiles(str(part / "ECSSD"))
    evaluate_maps("EDN", "ECSSD", files, part, tmp_path / "out" / "full")
    assert kept.stat().st_mtime_ns == before
    (part / MAPS / "EDN" / "ECSSD" / "ECSSD-0.png").unlink()
    changed = evaluate_maps("EDN", "ECSSD", files, part, tmp_path / "out" / "full")
    assert kept.stat().st_mtime_ns != before
    assert changed.images == len(open_source(files.images).names) - 1


def test_an_item_without_images_to_train_on_names_them(data, tmp_path):
    shutil.copytree(data / "ECSSD", tmp_path / "data" / "ECSSD")
    code, _, err = run("reproduce", "table-3", "--data", tmp_path / "data", "--out", tmp_path / "out")
    assert code == 2
    assert err == (
        f"densecal: reproduce table-3: DUTS-TR: not in {tmp_path / 'data'}; expected {tmp_path / 'data' / 'DUTS-TR'}, "
        "available at http://saliencydetection.net/duts/\n"
    )


def test_data_sets_are_found_as_folders_and_as_numbered_zips(data, tmp_path):
    for dataset in SETS.values():
        files = find(dataset.name, data, tmp_path)
        source = open_source(files.images, files.masks)
        training = dataset.name.endswith("train") or dataset.name == "DUTS-TR"
        assert len(source.names) == (load_scale(Scale.smoke).train if training else load_scale(Scale.smoke).test)
        assert source.has_masks == (not dataset.ood)
    zips = tmp_path / "zips"
    zips.mkdir()
    for name in ("duts-tr-0.zip", "duts-tr-1.zip", "ecssd.zip", "textures.zip", "ecssd-masks.zip"):
        (zips / name).touch()
    assert find("DUTS-TR", zips, tmp_path) == SetFiles([str(zips / "duts-tr-0.zip"), str(zips / "duts-tr-1.zip")])
    assert find("ECSSD", zips, tmp_path) == SetFiles([str(zips / "ecssd.zip")])
    assert find("textures", zips, tmp_path) == SetFiles([str(zips / "textures.zip")])
    assert find("DUTS-TE", zips, tmp_path) is None


def test_the_number_of_the_papers_textures_is_said(data, tmp_path):
    work = Workplace(Scale.full, data, tmp_path)
    results = Results(tmp_path)
    results.data["textures"] = work.find("textures")
    few = f"textures: 3 of the paper's 500 images in {data}; expected all of them"
    assert work.missing(find_item("table-2"), results) == [few]
    for name in published_list("dtd-textures"):
        (tmp_path / "all").mkdir(exist_ok=True)
        (tmp_path / "all" / f"{name}.png").touch()
    assert missing_textures(SetFiles(str(tmp_path / "all")), data) == []


def test_a_smaller_copy_has_evenly_chosen_images_and_their_masks(data, tmp_path):
    files = find("DUTS-TR", data, tmp_path)
    copy = thin(files, "DUTS-TR", tmp_path, 5, 24)
    whole, part = open_source(files.images), open_source(copy.images, copy.masks)
    assert part.names == sorted(whole.names[i] for i in (0, 3, 6, 8, 11))
    for name in part.names:
        assert part.image(name).shape == (24, 24, 3)
        assert set(np.unique(part.mask(name))) <= {0, 255}
        small = np.asarray(Image.fromarray(whole.mask(name)).resize((24, 24), Image.Resampling.BOX)) > 127
        assert ((part.mask(name) > 127) == small).mean() > 0.9
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    assert thin(files, "DUTS-TR", tmp_path, 5, 24) == copy
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")} == before


def test_generated_maps_stand_for_a_few_published_networks():
    assert set(NETWORKS) < set(HOMES)
    rows = {source.label for item in load_items().values() for source in item.sources().values() if source.is_published}
    assert rows == set(HOMES)


@pytest.mark.parametrize("matrix", MATRICES)
def test_every_row_of_a_matrix_belongs_to_an_item(matrix):
    used = {s.label for item in load_items().values() for s in item.sources().values() if s.matrix == matrix}
    entries = load_settings(matrix).select(used)
    assert [entry.name for entry in entries] == [entry.name for entry in load_settings(matrix).methods]


def test_an_unknown_item_is_refused(tmp_path):
    with pytest.raises(InputError, match="'table-9'"):
        reproduce("table-9", Scale.smoke, tmp_path, tmp_path)


@pytest.mark.parametrize("file", ["table.md", "table.tex", "table.csv", "figures/textures.png"])
def test_a_file_of_something_else_is_not_replaced(tmp_path, file):
    foreign = tmp_path / "smoke" / "table-2" / file
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")
    with pytest.raises(InputError, match="a file that densecal reproduce did not write"):
        reproduce("table-2", Scale.smoke, tmp_path, tmp_path)
    assert foreign.read_text() == "mine"
    assert list(tmp_path.rglob("*.*")) == [foreign]


def test_full_scale_takes_weights_from_the_folder_of_data_sets(data, tmp_path):
    part = tmp_path / "data"
    for name in ("DUTS-TR", "ECSSD"):
        shutil.copytree(data / name, part / name)
    weights = part / "weights" / "resnet50.safetensors"
    weights.parent.mkdir()
    weights.touch()
    for name, expected in (("sod", str(weights)), ("vgg16", "imagenet")):
        (cell, *_) = Plan(Workplace(Scale.full, part, tmp_path).matrix(name, {"bce"}), tmp_path).untuned
        assert cell.config.model.weights == expected
        assert f"(weights: {expected})" in describe_config(cell.config)
