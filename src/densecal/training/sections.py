"""The sections of a configuration: what every key of `data`, `model`, `method`, `optim` and `engine` means."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from densecal import methods

Positive = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=16, le=4096)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Path_ = str
"""Paths stay text, so that a configuration is written back as it was read."""


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ScenesConfig(Section):
    """Generated scenes instead of files.

    Attributes:
        train: Scenes to train on.
        validation: Scenes to validate on.
        seed: Seed of the generator.
        softness: Scale of the annotators' outline errors in pixels.
        doubtful: Share of scenes with an object that is labelled only sometimes.
        noise: Standard deviation of the pixel noise.
    """

    train: Annotated[int, Field(ge=1, le=1_000_000)] = 320
    validation: Annotated[int, Field(ge=1, le=1_000_000)] = 160
    seed: int = 0
    softness: Annotated[float, Field(ge=0)] = 1.5
    doubtful: Annotated[float, Field(ge=0, le=1)] = 0.5
    noise: Annotated[float, Field(ge=0)] = 0.06


class DataConfig(Section):
    """Where the images are and how they are prepared.

    Attributes:
        images: Folder of images, folder of a published data set, list file, zip, or several zips.
        masks: Folder of masks, where ``images`` is a folder of images.
        validation: List file, share in [0, 1) or number of images held out; or a folder or zip of others; or
            ``duts-tr-validation``, the paper's split of DUTS-TR.
        groups: Groups of images that are alike (patient, video, scene): a file of lines ``name,group``, or a pattern
            whose first capture group in an image's name is its group. The split keeps groups together, and intervals
            resample them.
        scenes: Generated scenes, in place of ``images``.
        size: Side of the square images the network sees.
        sizes: Sides from which training draws one per batch; ``size`` unless given.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Mask value of void pixels.
        informationless: Share of the images, drawn again every epoch, that are replaced by images without an object,
            with empty masks (foreground masks only).
        augment: ``paper`` (flip, translation, crop), ``code`` (the authors' program), ``none``, or what a published
            network is trained with: ``edn``, ``icon``, ``ebmgsod``.
        cache: Folder of the packed cache; one in the user's cache folder unless given.
        workers: Decoding processes; all cores unless given.
    """

    images: Path_ | list[Path_] | None = None
    masks: Path_ | None = None
    validation: Path_ | int | float = 0.1
    groups: str | None = None
    scenes: ScenesConfig | None = None
    size: Side = 384
    sizes: Annotated[list[Side], Field(min_length=1)] | None = None
    classes: Annotated[int, Field(ge=1, le=255)] = 1
    ignore_index: Annotated[int, Field(ge=0, le=255)] = 255
    informationless: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augment: Literal["none", "paper", "code", "edn", "icon", "ebmgsod"] = "paper"
    cache: Path_ | None = None
    workers: Positive | None = None

    @model_validator(mode="after")
    def _check_source(self) -> DataConfig:
        if (self.images is None) == (self.scenes is None):
            raise ValueError(
                "images and scenes are both given, or neither; expected images (a folder, list file or zips) or scenes"
            )
        if self.scenes is not None and self.groups is not None:
            raise ValueError(f"groups {self.groups!r} with scenes; expected images, as scenes are independent")
        if self.scenes is not None and self.classes > 1:
            raise ValueError(f"scenes for {self.classes} classes; expected images, as scenes have foreground masks")
        if self.informationless and self.classes > 1:
            raise ValueError(
                f"informationless images for {self.classes} classes; expected foreground masks, which can be empty"
            )
        return self


class ModelConfig(Section):
    """The network.

    Attributes:
        arch: Architecture, see ``densecal.models.architectures()``.
        encoder: timm name.
        weights: Where the network starts: ``imagenet`` (the encoder's weights from timm's hub, which needs internet),
            ``offline`` (those of an installed package, for tf_efficientnet_lite0 to 2), a ``.pth`` or ``.safetensors``
            file of an encoder or of a whole model, a run folder, or ``null`` for random weights.
        options: Further options of the architecture; numbers up to 4096.
        calibrator: Fitted on the validation images when training ends, kept in the run folder and applied by
            prediction and export. One of ``densecal.posthoc.names()`` that needs only logits.
    """

    arch: str = "unet"
    encoder: str = "resnet50"
    weights: str | None = None
    options: dict[str, Any] = {}
    calibrator: str | None = None

    @model_validator(mode="after")
    def _check_options(self) -> ModelConfig:
        """Refuse huge options: an untrusted checkpoint must not ask for a network that fills the memory."""
        values = [item for value in self.options.values() for item in (value if isinstance(value, list) else [value])]
        if any(isinstance(value, int | float) and not abs(value) <= 4096 for value in values):
            raise ValueError(f"options {self.options}; expected numbers up to 4096")
        return self


class MethodConfig(BaseModel):
    """The calibration method. Further keys are its options.

    Attributes:
        name: The method. Its own options are listed in the section of its name.
        loss: The loss that the method builds on, as weights of its terms, such as ``{bce: 1, dice: 1}``; cross entropy
            unless given. Terms are ``bce`` (cross entropy, or what the method has in its place), ``dice``, ``iou``,
            ``lovasz``, ``tversky`` and ``focal-tversky``. The last two take ``{weight: 1, false_positives: 0.3,
            false_negatives: 0.7}`` too, and ``focal-tversky`` also ``gamma``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "aslp-mc"
    loss: dict[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The method's options."""
        return dict(self.model_extra or {}) | ({} if self.loss is None else {"loss": self.loss})

    @model_validator(mode="after")
    def _check_name_and_options(self) -> MethodConfig:
        if self.name not in methods.names():
            raise ValueError(f"name is {self.name!r}; expected one of {', '.join(methods.names())}")
        allowed = set(methods.options(self.name)) - {"num_samples", "num_classes", "ignore_index", "seed"}
        unknown = sorted(self.options.keys() - allowed)
        if unknown:
            known = f"one of {', '.join(sorted(allowed))}" if allowed else "no options"
            raise ValueError(f"unknown key {unknown[0]!r} for {self.name}; expected {known}")
        return self


class OptimConfig(Section):
    """How the weights are optimised.

    Attributes:
        epochs: Epochs; those of the first stage if the method's schedule is ``two-stage``.
        second_epochs: Epochs of the second stage, a training of its own that starts from the first stage's weights; as
            many as ``epochs`` unless given.
        batch: Images per batch, over all devices.
        accumulate: Batches whose gradients are added up before a step.
        optimizer: ``adam``, ``adamw`` or ``sgd`` (with Nesterov's momentum of 0.9).
        betas: Adam's decay rates.
        lr: Learning rate.
        lrs: Learning rates of parts of the network, such as ``encoder``, that differ from ``lr``; 0 leaves a part
            unchanged.
        weight_decay: Weight decay.
        schedule: ``paper`` (times 0.9 per epoch after the tenth), ``code`` (the authors' program), ``cosine``,
            ``constant``, ``poly``, ``triangular`` or ``late-decay``.
        warmup_steps: Steps over which the learning rate rises from a hundredth of its value.
        ema: Decay of a running average of the weights, which is validated and saved in their place; 0 is off. The
            decay is lower at first, so that the average covers about the last third of the steps taken.
        ema_start: Share of the initial weights in that average.
    """

    epochs: Positive = 30
    second_epochs: Positive | None = None
    batch: Positive = 10
    accumulate: Positive = 1
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    lr: Annotated[float, Field(gt=0)] = 2.5e-5
    lrs: dict[str, Annotated[float, Field(ge=0)]] = {}
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["poly", "triangular", "late-decay", "paper", "code", "cosine", "constant"] = "paper"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    ema: Decay = 0.0
    ema_start: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def second_length(self) -> int:
        """Epochs of a second stage."""
        return self.second_epochs or self.epochs

    @model_validator(mode="after")
    def _check_average(self) -> OptimConfig:
        if self.ema_start and not self.ema:
            raise ValueError(f"ema_start is {self.ema_start} without an average; expected ema too, such as 0.998")
        return self


REMOVED_ENGINE_KEYS = ("channels_last", "compile", "depthwise", "fused")
"""Switches of densecal 0.1, which files may still contain."""


class EngineConfig(Section):
    """The hardware, and how it is used.

    Attributes:
        seed: Seed of everything random.
        accelerator: ``auto``, ``cpu`` or ``cuda``.
        devices: Processes on this machine.
        nodes: Machines.
        threads: Threads on a CPU. ``auto`` is one per core, fewer while other processes use cores, and OMP_NUM_THREADS
            if it is set. Runs with the same number have the same bits.
        precision: ``auto`` is bf16 on CUDA and fp32 elsewhere.
        graphs: Replay training steps (on one device, without ``optim.accumulate``), validation and the predictions
            of the trained model as CUDA graphs.
        kernels: Train with densecal's own CUDA kernels. Prediction always uses them.
        bins: Bins of the validation's calibration errors.
        loggers: Any of ``tensorboard``, ``mlflow``, ``wandb``, which get the lines of the log. By default TensorBoard
            if it is installed.
    """

    seed: int = 0
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Positive = 1
    nodes: Positive = 1
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    graphs: bool = True
    kernels: bool = True
    bins: Annotated[int, Field(ge=1, le=1000)] = 10
    loggers: list[Literal["tensorboard", "mlflow", "wandb"]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_removed_keys(cls, settings: Any) -> Any:
        """Read the files of densecal 0.1, which had more switches."""
        if not isinstance(settings, dict):
            return settings
        kept = {key: value for key, value in settings.items() if key not in REMOVED_ENGINE_KEYS}
        if settings.get("fused") is False:
            kept.setdefault("kernels", False)
        return kept
