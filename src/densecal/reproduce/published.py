"""Rows of published networks: their maps, which the user has downloaded, against the masks of a data set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from densecal.data import open_source
from densecal.evaluation.folders import evaluate
from densecal.evaluation.record import SCHEMA, Record
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_json
from densecal.io.documents import read_json
from densecal.io.images import write_png
from densecal.io.outputs import software
from densecal.reproduce.datasets import SetFiles
from densecal.reproduce.items import MAPS
from densecal.runtime.cores import cores

HOMES = {
    "MSRNet": 'the authors of "Instance-Level Salient Object Segmentation" (CVPR 2017)',
    "SRM": "https://github.com/TiantianWang/ICCV17_SRM",
    "Amulet": "https://github.com/Pchank/caffe-sal",
    "BMPM": "https://github.com/zhangludl/A-bi-directional-message-passing-model-for-salient-object-detection",
    "DGRL": "https://github.com/TiantianWang/CVPR18_detect_globally_refine_locally",
    "PAGR": "https://github.com/zhangxiaoning666/PAGR",
    "PiCANet": "https://github.com/nian-liu/PiCANet",
    "CPD": "https://github.com/wuzhe71/CPD",
    "BASNet": "https://github.com/xuebinqin/BASNet",
    "EGNet": "https://github.com/JXingZhao/EGNet",
    "AFNet": "https://github.com/ArcherFMY/AFNet",
    "PoolNet": "https://github.com/backseason/PoolNet",
    "GCPANet": "https://github.com/JosephChenHub/GCPANet",
    "MINet": "https://github.com/lartpang/MINet",
    "F3Net": "https://github.com/weijun88/F3Net",
    "EBMGSOD": "https://github.com/JingZhang617/EBMGSOD",
    "ICON": "https://github.com/mczhuge/ICON",
    "PFSNet": "https://github.com/iCVTEAM/PFSNet",
    "EDN": "https://github.com/yuhuan-wu/EDN",
}
"""Where to obtain the maps of each network."""


def missing_maps(networks: Sequence[str], data: Path) -> str:
    """Return one line that says where to obtain maps and where they belong."""
    homes = ", ".join(f"{network} ({HOMES[network]})" for network in networks)
    return f"published maps: not in {data / MAPS}; expected {data / MAPS}/NETWORK/DATASET/ of {homes}"


def evaluate_maps(network: str, dataset: str, files: SetFiles, data: Path, out: Path) -> Record | None:
    """Return the record of a network's maps on a data set, evaluated once; ``None`` if there are no maps.

    Args:
        network: Name of the network.
        dataset: Name of the data set.
        files: The files of the data set.
        data: Folder with ``maps/NETWORK/DATASET/``.
        out: Folder for the record, and for masks from zips.
    """
    maps = data / MAPS / network / dataset
    if not maps.is_dir():
        return None
    masks = _mask_folder(files, out / "masks" / dataset)
    listings = [
        sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir())
        for folder in (maps, masks)
    ]
    digest = hashlib.sha256(repr((SCHEMA, listings)).encode()).hexdigest()
    path = out / "published" / network / f"{dataset}.json"
    if path.is_file():
        kept = read_json(path, "the record of published maps")
        if isinstance(kept, dict) and kept.get("digest") == digest:
            return Record.from_json(kept["record"], path)
    evaluation = evaluate(
        maps, masks, name=network, dataset=dataset, settings=Settings(full=False), workers=cores(), skip_bad=True
    )
    write_json(path, {"digest": digest, "record": evaluation.record.to_json()})
    return evaluation.record


def _mask_folder(files: SetFiles, copies: Path) -> Path:
    """Return the folder of a data set's masks; those in a zip are unpacked."""
    source = open_source(files.images, files.masks)
    first = source.mask_location(source.names[0])
    if not first.member:
        return first.path.parent
    copies.mkdir(parents=True, exist_ok=True)
    for name in source.names:
        if not (copies / f"{name}.png").exists():
            write_png(copies / f"{name}.png", source.mask(name), software("reproduce"))
    return copies
