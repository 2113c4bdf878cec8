"""`densecal predict`: from a run, or a network in a file, and images or volumes to maps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from densecal.cli.app import app
from densecal.cli.common import Force, named_files, print_line, print_unfinished, progress_bar
from densecal.cli.engine import Address, EngineName, EngineOption, open_engine
from densecal.errors import InputError
from densecal.io import MAX_PIXELS, MAX_VOXELS


@app.command()
def predict(
    model: Annotated[
        Path,
        typer.Argument(
            help="Run folder, checkpoint folder, ONNX file, hf:NAME or torchvision:NAME. "
            "For volumes: a file of ONNX, torch.export or TorchScript."
        ),
    ],
    images: Annotated[
        Path,
        typer.Argument(help="Folder of images, one image, list file, zip with images/, or a folder of volumes."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the maps.")] = ...,  # type: ignore[assignment]
    format: Annotated[
        str | None,
        typer.Option(
            help="png16 (default), png8 or npy (default for several classes). "
            "Volumes: npy instead of the volume's own format."
        ),
    ] = None,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty", help="Also write confidence/ and entropy/ maps.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images per batch; with --tile, as many tiles as have the same number of pixels.")
    ] = 8,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    preprocess: Annotated[
        str | None,
        typer.Option(
            help="How images are prepared for an ONNX file: u2net, isnet or a YAML file. "
            "Files of `densecal export` say it themselves. For volumes: a YAML file (docs/howto/volumes.md)."
        ),
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="Another run whose probabilities are averaged in, at the network's size; may be repeated."),
    ] = None,
    mc_dropout: Annotated[
        int | None, typer.Option(min=1, help="Average over this many draws of the network's dropout.")
    ] = None,
    tile: Annotated[
        int | None,
        typer.Option(
            help="Predict at each image's own resolution, in tiles with this side in pixels (a multiple of 32). "
            "Volumes are always predicted in tiles, of any side."
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(help="Pixels that tiles share (images: a multiple of 32). Default: a quarter of a tile."),
    ] = None,
    like_onnx: Annotated[
        bool, typer.Option("--like-onnx", help="Resize probabilities, not logits, as the exported file does.")
    ] = False,
    max_pixels: Annotated[
        int | None,
        typer.Option(
            min=1, show_default="67 million, volumes: 268 million", help="Refuse images or volumes with more pixels."
        ),
    ] = None,
    engine: EngineOption = EngineName.local,
    address: Address = None,
    force: Force = False,
) -> None:
    """Write the probability maps of a trained model, at the size of each image.

    Images are resized to the size the network was trained at, and its output is resized back. With `--tile`, large
    images keep their detail: the network sees overlapping tiles, whose probabilities are blended. No map is stretched
    to its own range.

    A network of another origin, as an ONNX file, needs onnxruntime but not PyTorch. `--preprocess` names a preset or a
    YAML file with the keys size, scale, mean, std, order, resample, output and activation. Segmentation models of
    transformers and torchvision are given by name, and prepare images as their libraries do.

    Volumes (NIfTI, MetaImage, NRRD, NumPy, Zarr, HDF5) take a 3D network as a file of ONNX, torch.export or
    TorchScript, which slides over them in tiles. Maps keep the format and geometry of the volume. PyTorch files
    are programs: from strangers, accept only ONNX files.

    Examples:

    * `densecal predict runs/duts photos/ --out maps/`

    * `densecal predict u2netp.onnx photos/ --preprocess u2net --out maps/`

    * `densecal predict torchvision:deeplabv3_resnet50 photos/ --out maps/`

    * `densecal predict runs/duts/checkpoints/best photos/ --out maps/ --format npy --uncertainty`

    * `densecal predict runs/seed0 photos/ --ensemble runs/seed1 --ensemble runs/seed2 --out maps/`

    * `densecal predict runs/duts aerial/ --tile 512 --out maps/`

    * `densecal predict network.pt scans/ --tile 96 --preprocess ct.yaml --out maps/`, a 3D network on volumes

    * `densecal predict runs/duts photos/ --out maps/ --engine ray --address auto`, on the GPUs of a cluster
    """
    from densecal.io.outputs import check_output_folder
    from densecal.io.run_files import run_files
    from densecal.prediction.folder import predict as run_prediction
    from densecal.prediction.folder import write_maps
    from densecal.prediction.onnx_model import is_onnx, load_onnx
    from densecal.prediction.volume_networks import is_torch_file
    from densecal.prediction.volumes import find_volumes
    from densecal.runtime.sharding import join_processes

    check_output_folder(out, [images])  # the rest is checked once the format of the maps is known
    by_name = str(model).startswith(("hf:", "torchvision:"))
    if find_volumes(images):
        for option, value in (
            ("--ensemble", ensemble), ("--mc-dropout", mc_dropout), ("--like-onnx", like_onnx),
            ("--engine ray", engine is EngineName.ray),
        ):  # fmt: skip
            if value:
                raise InputError(option, "with volumes", "pictures, or volumes without this option")
        _predict_volumes(
            model, images, out, preprocess, tile, overlap, device, max_pixels or MAX_VOXELS,
            {"format": format, "uncertainty": uncertainty, "batch": batch, "force": force},
        )  # fmt: skip
        return
    if is_torch_file(model):
        raise InputError(images, "no volumes", "volumes for a file of PyTorch; networks for pictures are ONNX files")
    if tile is None and overlap is not None:
        raise InputError("--overlap", str(overlap), "--tile as well")
    if tile is not None and like_onnx:
        raise InputError("--like-onnx", "with --tile", "one of the two, because tiles are not resized")
    max_pixels = max_pixels or MAX_PIXELS
    if by_name and preprocess is not None:
        raise InputError("--preprocess", f"with {model}", "an ONNX file; models by name prepare images themselves")
    if by_name or is_onnx(model):
        for option, value in (
            ("--ensemble", ensemble), ("--mc-dropout", mc_dropout), ("--tile", tile), ("--like-onnx", like_onnx),
        ):  # fmt: skip
            if value:
                source = str(model) if by_name else "an ONNX file"
                raise InputError(option, f"with {source}", "a run folder or checkpoint folder")
    elif preprocess is not None:
        raise InputError("--preprocess", "with a run", "an ONNX file; a run knows how its images are prepared")
    models = (model, *(ensemble or []))
    preprocess_files = named_files(preprocess)
    with open_engine(engine, address) as cluster:
        if cluster is not None:
            if by_name:
                raise InputError("--engine", f"{engine} with {model}", "a run folder, checkpoint folder or ONNX file")
            from densecal.prediction.job import Job, predict_on

            print_unfinished(*models)
            job = Job(
                models, images, out, format, uncertainty, batch, device, preprocess, mc_dropout, tile, overlap,
                like_onnx, max_pixels,
            )  # fmt: skip
            reads = [file for member in models for file in run_files(member)] + [model, *preprocess_files]
            with progress_bar() as report:
                print_line(f"{out}: {predict_on(cluster, job, report, reads, force):,} maps")
            return
    if by_name or is_onnx(model):
        with join_processes() as processes, progress_bar() as report:
            if by_name:
                from densecal.prediction.named_models import load_named

                network: Any = load_named(str(model), device)
            else:
                network = load_onnx(model, preprocess, device)
            count = write_maps(
                network.chunks,
                network.classes,
                images,
                out,
                format=format,
                uncertainty=uncertainty,
                batch=batch,
                max_pixels=max_pixels,
                progress=report,
                processes=processes,
                reads=[] if by_name else [model, *preprocess_files],
                force=force,
            )
        if processes.first:
            print_line(f"{out}: {count:,} maps")
        return
    from densecal.prediction.tiles import Tiling

    tiling = None if tile is None else Tiling.of(tile, overlap)
    with join_processes() as processes, progress_bar() as report:
        from densecal.prediction.ensembles import load_ensemble, with_mc_dropout  # imports PyTorch, which takes seconds

        processes.use_own_gpu()
        runs = [model, *(ensemble or [])]
        if processes.first:
            print_unfinished(*runs)
        predictor = load_ensemble(runs, device)
        if mc_dropout:
            predictor = with_mc_dropout(predictor, mc_dropout)
        count = run_prediction(
            predictor,
            images,
            out,
            format=format,
            uncertainty=uncertainty,
            batch=batch,
            tiling=tiling,
            like_onnx=like_onnx,
            max_pixels=max_pixels,
            progress=report,
            processes=processes,
            reads=(file for member in runs for file in run_files(member)),
            force=force,
        )
    if processes.first:
        print_line(f"{out}: {count:,} maps")


def _predict_volumes(
    model: Path, volumes: Path, out: Path, preprocess: str | None, tile: int | None, overlap: int | None, device: str,
    max_voxels: int, options: dict[str, Any],
) -> None:  # fmt: skip
    """Predict volumes with a network in a file."""
    from densecal.prediction.volume_input import read_volume_input
    from densecal.prediction.volume_networks import load_volume_network
    from densecal.prediction.volumes import predict_volumes
    from densecal.runtime.sharding import join_processes

    prepare = read_volume_input(preprocess, tile, overlap)
    with join_processes() as processes, progress_bar() as report:
        processes.use_own_gpu()
        network = load_volume_network(model, prepare.output, device)
        count = predict_volumes(
            network, volumes, out, prepare, max_voxels=max_voxels, progress=report, processes=processes,
            reads=[model, *named_files(preprocess)], **options,
        )  # fmt: skip
    if processes.first:
        print_line(f"{out}: {count:,} maps")
