"""Lightning's Trainer with the settings of a run, and all adaptations of Lightning."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.plugins.layer_sync import LayerSync
from torch import nn

from burn.backbones.base import Backbone
from burn.layers.sync_norm import synchronize_norms
from burn.methods.base import Method
from burn.training.callbacks.resume import ResumeWriter
from burn.training.compiled import compile_training
from burn.training.prepared import PreparedRun


def build_trainer(
    callbacks: list[L.Callback],
    writer: ResumeWriter,
    run: PreparedRun,
    method: Method,
    num_steps: int,
) -> L.Trainer:
    """Build the Trainer of a stage.

    Args:
        callbacks: The callbacks, in the order in which they are called.
        writer: Writes the resume files.
        run: The run.
        method: The method of the stage.
        num_steps: Number of optimizer steps of the stage.
    """
    recipe, processes = run.plan.recipe, run.processes
    if run.machine.compile:
        _compile(method.backbone, run)
    several: dict[str, Any] = {}
    if processes.count > 1:
        several = {
            "num_nodes": processes.count // processes.local_count,
            "strategy": "ddp",
        }
    plugins: list[Any] = [writer, _Environment()]
    if run.synchronizes:
        plugins.append(_SyncNorms())
    with quiet_lightning():
        trainer = L.Trainer(
            accelerator=processes.device.type,
            devices=processes.local_count,
            plugins=plugins,
            precision="bf16-mixed" if run.compute == "bfloat16" else "32-true",
            max_steps=num_steps,
            max_epochs=-1,
            accumulate_grad_batches=recipe.accumulate,
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            callbacks=callbacks,
            logger=False,
            num_sanity_val_steps=0,
            **several,
        )
    # burn.runtime.signals handles signals. Lightning's handler of SIGTERM communicates with the
    # other processes from inside the handler, and hangs if only one of them got the signal; its
    # check at every step, whether rank 0 got one, waits for the GPU.
    trainer._signal_connector.register_signal_handlers = lambda: None
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    return trainer


def _compile(backbone: Backbone, run: PreparedRun) -> None:
    def report(line: str) -> None:
        run.console.print(line, style="yellow", markup=False, highlight=False)

    if run.synchronizes:
        report("--compile: BN over several processes cannot be compiled; training goes on without")
    else:
        compile_training(backbone, report)


class quiet_lightning:
    """A context manager that suppresses Lightning's tips and warnings, which do not help a user."""

    _LOGGERS = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero",
                "lightning.pytorch.accelerators.cuda", "torch.utils.cpp_extension")  # fmt: skip

    def __enter__(self) -> None:
        self._levels = {name: logging.getLogger(name).level for name in self._LOGGERS}
        for name in self._LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._caught = warnings.catch_warnings()
        self._caught.__enter__()
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        warnings.filterwarnings("ignore", message=r".*num_workers.*")
        # DistributedDataParallel warns of 1×1 kernels in channels-last layout, but copies nothing.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")

    def __exit__(self, *exception: object) -> None:
        self._caught.__exit__(None, None, None)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)


class _SyncNorms(LayerSync):
    """Converts BN to burn's synchronized BN, which stays: outside of training it is plain BN.

    Lightning's own conversion drops the activations that timm's BN contains.
    """

    def apply(self, model: nn.Module) -> nn.Module:
        return synchronize_norms(model)

    def revert(self, model: nn.Module) -> nn.Module:
        return model


class _Environment(LightningEnvironment):
    """Leaves the environment as it is when training ends: burn reads its rank after it, too."""

    def teardown(self) -> None:
        pass
