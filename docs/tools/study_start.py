"""What a share of the initial weights does to a trained model.

    densecal train docs/results/recipe.yaml "data.images=[data/duts-tr-0.zip, data/duts-tr-1.zip]" \
        data.validation=data/duts-tr-val.txt data.informationless=0.1 data.size=96 \
        model.encoder=tf_efficientnet_lite0 optim.epochs=4 optim.ema=0.998 --out runs/start
    python docs/tools/study_start.py runs/start --out docs/results/study-start.json

One run gives all rows, because averaged weights are mixed with the initial ones only when the run is over
(`optim.ema_start` mixes them at every step, with the same result). The rows are measured on validation images and on
informationless images made from them, with a temperature fitted to the former.
"""

import argparse
import json
from pathlib import Path

import torch

from densecal.benchmark.matrix import Dataset
from densecal.benchmark.sets import ImageSets
from densecal.calibrate.fit import fit_several
from densecal.calibrate.runs import ImageSetData
from densecal.evaluation.model import evaluate_model
from densecal.training import checkpoint
from densecal.training.config import parse_config
from densecal.training.run import initial_network

SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)


def main() -> None:
    """Mix the weights, fit a temperature, evaluate and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    trained = checkpoint.load(checkpoint.find(given.run))
    config, end = parse_config(trained.meta["config"], str(given.run)), trained.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = initial_network(config, device)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    sets = ImageSets().of(config, (Dataset(name="informationless", informationless=True),))
    rows = []
    for share in SHARES:
        mixed = {name: _mixed(end[name].to(device), start[name], share) for name in start}
        network.load_state_dict(mixed)
        network.eval()
        calibrators = fit_several(["temperature"], ImageSetData(network, sets[0], device), device)
        row: dict[str, float] = {"share": share, "temperature": float(calibrators["temperature"].temperature)}
        for data in sets:
            figures = evaluate_model(network, data, calibrators, device=device)["temperature"].record.calibration
            row |= {f"{data.name} {key}": figures[key] for key in ("ece_ew", "nll", "accuracy")}
        rows.append(row)
        print(json.dumps(row), flush=True)
        given.out.write_text(json.dumps({"config": config.model_dump(mode="json"), "rows": rows}, indent=1) + "\n")


def _mixed(end: torch.Tensor, start: torch.Tensor, share: float) -> torch.Tensor:
    return torch.lerp(end, start, share) if end.is_floating_point() else end


if __name__ == "__main__":
    main()
