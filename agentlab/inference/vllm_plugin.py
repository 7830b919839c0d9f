"""Runs inside vLLM's own process: takes new weights from a file, all of them or none.

vLLM finds it as a plugin (`load` is its entry point) when `vllm_process` starts a server; it imports
torch and vLLM and nothing of agentlab, whose package need not be installed there.
"""

# vLLM is not installed where types are checked.
# pyright: reportMissingImports=false

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BACKEND = "agentlab-file"
"""The name under which vLLM's `--weight-transfer-config` knows it."""


def load() -> None:
    """Register the weight transfer with vLLM.

    Raises:
        RuntimeError: in a server on a TPU.
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.platforms import current_platform

    if current_platform.is_tpu():
        if not __name__.startswith("agentlab."):  # it was copied for a server
            raise RuntimeError(
                "A vLLM server of agentlab must run on a GPU or CPU: the TPU build refuses requests with a seed. "
                "On a TPU use VLLMEngine, in a Python that has vllm-tpu."
            )
        from tpu_inference.worker.tpu_worker import TPUWorker

        from agentlab.inference.vllm_tpu import take_over

        take_over(TPUWorker)
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, __name__, "FileWeightTransfer")


def __getattr__(name: str) -> Any:
    """The class is made at first use, since its base needs torch."""
    if name == "FileWeightTransfer":
        globals()[name] = _make()
        return globals()[name]
    raise AttributeError(name)


def _make() -> type:
    from safetensors import safe_open
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )

    @dataclass
    class InitInfo(WeightTransferInitInfo):
        """Nothing has to be agreed on."""

    @dataclass
    class UpdateInfo(WeightTransferUpdateInfo):
        """A safetensors file with the names of a Hugging Face checkpoint."""

        path: str

    class FileWeightTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
        """Compares a file's names and shapes with the model, and only then touches the model."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo
        broken: str | None = None

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            """Nothing to set up."""

        def start_weight_update(self) -> None:
            """Nothing is touched yet."""

        def receive_weights(self, update_info: UpdateInfo) -> None:
            if self.broken:
                raise RuntimeError(f"This server's weights are incomplete since an update failed: {self.broken}")
            with safe_open(update_info.path, framework="pt") as file:
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
                faults = differences(self.model, shapes, self.parallel_config.tensor_parallel_size)
                if faults:
                    raise ValueError(f"{len(faults)} tensors do not fit, nothing was changed: " + "; ".join(faults[:3]))
                self._replace((name, file.get_tensor(name)) for name in shapes)

        def _replace(self, tensors: Iterator[tuple[str, Any]]) -> None:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

            try:
                initialize_layerwise_reload(self.model)
                self.model.load_weights(tensors)
                finalize_layerwise_reload(self.model, self.model_config)
                refresh_tied_heads(self.model)
            except BaseException as error:  # whatever it was, half a model must never answer again
                type(self).broken = f"{type(error).__name__}: {error}"
                raise

        def finish_weight_update(self) -> None:
            """All was done when the file had been read."""

        def shutdown(self) -> None:
            """Nothing is held."""

    return FileWeightTransfer


def refresh_tied_heads(model: Any) -> None:
    """Let output layers that share the embedding prepare it again.

    vLLM reloads what a checkpoint names; a tied head is not named, and on the CPU it multiplies by a
    packed copy of the embedding, which would stay the old one.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, UnquantizedEmbeddingMethod

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and isinstance(module.quant_method, UnquantizedEmbeddingMethod):
            module.quant_method.process_weights_after_loading(module)


def differences(model: Any, shapes: dict[str, tuple[int, ...]], num_shards: int) -> list[str]:
    """What does not fit between a checkpoint's tensors and the model; nothing when all does.

    Args:
        model: vLLM's torch module.
        shapes: Of the checkpoint, by Hugging Face name.
        num_shards: Ranks over which a tensor may be split along one axis.
    """
    left, faults = dict(shapes), []
    for name, wanted in wanted_shapes(model).items():
        got = left.pop(name, None)
        if got is None:
            faults.append(f"{name} is missing")
        elif not fits(got, wanted, num_shards):
            faults.append(f"{name} has shape {list(got)} and must have {list(wanted)}")
    faults += [f"{name} is not known to the model" for name in left]
    return faults


def fits(got: tuple[int, ...], wanted: tuple[int, ...], num_shards: int) -> bool:
    """Whether this is the shape, or the whole of which `wanted` is one shard."""
    if got == wanted:
        return True
    other = [(a, b) for a, b in zip(got, wanted, strict=False) if a != b]
    return len(got) == len(wanted) and len(other) == 1 and other[0][0] == other[0][1] * num_shards


def wanted_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Whole shapes by Hugging Face name of all that the model holds; fused matrices taken apart.

    A linear layer tells its sizes itself: on some devices its matrix has been packed away.
    """
    modules = dict(model.named_modules())
    fused = getattr(model, "packed_modules_mapping", {})
    wanted: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        parent, _, last = path.rpartition(".")
        module = modules[path]
        if hasattr(module, "org_vocab_size"):
            wanted[name] = (module.org_vocab_size, *parameter.shape[1:])
        elif not (hasattr(module, "input_size") and hasattr(module, "output_size")):
            wanted[name] = tuple(parameter.shape)
        else:
            inputs = (module.input_size,) if leaf == "weight" else ()
            parts, sizes = fused.get(last, [last]), getattr(module, "output_sizes", [module.output_size])
            for part, rows in zip(parts, sizes, strict=True):
                wanted[f"{parent}.{part}.{leaf}"] = (rows, *inputs)
    return wanted
