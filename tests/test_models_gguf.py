"""GGUF files of every family and every type of tensor."""

import struct
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from agentlab.errors import ModelError
from agentlab.models import load_model, tiny_model
from agentlab.models.config import LinearScaling, RopeScaling
from agentlab.models.decoder import rotary_frequencies
from agentlab.models.gguf_config import gguf_config, llama3_scaling
from agentlab.models.gguf_file import BLOCK_NAMES, POST_NORM_BLOCK_NAMES, TOP_NAMES
from agentlab.models.gguf_reader import GGUFFile, GGUFTensor
from agentlab.models.weights import named_arrays

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2", "gemma3_text": "gemma3"}
GEMMA_PIECES = [
    "<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁", "h", "e", "l", "o", "w", "r", "d", "he", "ll", "llo", "hello", "▁w", "or", "▁wor", "ld", "▁world", "\n\n",
]  # fmt: skip


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of a query or key projection."""
    rows = weight.shape[0]
    return weight.reshape(num_heads, 2, rows // num_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def add_tokenizer(writer: gguf.GGUFWriter, model) -> None:
    if model.config.offset_norms:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(GEMMA_PIECES)
        writer.add_token_scores([-float(place) for place in range(len(GEMMA_PIECES))])
        kinds = [3] * 3 + [2] + [3] * 2 + [6] * 256 + [1] * (len(GEMMA_PIECES) - 263) + [4]
        writer.add_token_types(kinds)
        for name, token in (("bos", 2), ("eos", 1), ("unk", 3), ("pad", 0)):
            getattr(writer, f"add_{name}_token_id")(token)
        writer.add_add_space_prefix(False)
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if model.config.model_type.startswith("qwen") else "llama-bpe")
    tokens = model.tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([])
    writer.add_eos_token_id(model.config.eos_token_ids[0])


def write_gguf(model, path: Path, factors: np.ndarray | None = None, **extra: float) -> Path:
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    if any(config.windows):
        writer.add_sliding_window(next(filter(None, config.windows)))
    for key, value in extra.items():
        writer.add_float32(f"{architecture}.{key}", value)
    if isinstance(config.rope_scaling, LinearScaling):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_scaling.factor)
    add_tokenizer(writer, model)
    blocks = {hf: name for name, hf in (POST_NORM_BLOCK_NAMES if config.post_norms else BLOCK_NAMES).items()}
    tops = {hf: name for name, hf in TOP_NAMES.items()}
    for name, array in named_arrays(model.params).items():
        if config.model_type == "llama" and ("q_proj" in name or "k_proj" in name):
            array = permuted(array, config.num_heads if "q_proj" in name else config.num_kv_heads)
        if config.offset_norms and "norm" in name:
            array = array + 1
        parts = name.split(".")
        stored = tops.get(name) or f"blk.{parts[2]}.{blocks['.'.join(parts[3:-1])]}.{parts[-1]}"
        writer.add_tensor(stored, array.astype(np.float32))
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_file_of_each_family_gives_the_model_that_was_written_to_it(model_type, tmp_path):
    extra, options = {}, {"tied_embeddings": False}
    if model_type == "gemma2":
        extra = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        options = {"windows": (7, None, 7), "attention_soft_cap": 50.0, "logit_soft_cap": 30.0}
    if model_type == "gemma3_text":
        options = {"windows": (7,) * 5 + (None, 7), "local_rope_theta": 1e4, "rope_theta": 1e6}
        options |= {"rope_scaling": LinearScaling(factor=8.0)}
    if model_type.startswith("gemma"):
        layers = len(options["windows"])
        special = {"vocab_size": len(GEMMA_PIECES), "bos_token_id": 2, "eos_token_ids": (1, 5)}
        options |= {"num_layers": layers, "hidden_size": 32, "query_pre_attn_scalar": 16, **special}
    model = tiny_model(model_type=model_type, **options)
    loaded = load_model(write_gguf(model, tmp_path / "model.gguf", **extra))
    assert loaded.config == model.config
    wanted, got = named_arrays(model.params), named_arrays(loaded.params)
    assert wanted.keys() == got.keys()
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], atol=1e-7, err_msg=name)


def test_gemmas_tokenizer_joins_the_likeliest_pieces_and_falls_back_to_bytes(tmp_path):
    options = {"windows": (7, None), "vocab_size": len(GEMMA_PIECES), "query_pre_attn_scalar": 16}
    path = write_gguf(tiny_model(model_type="gemma2", **options), tmp_path / "model.gguf")
    tokenizer = load_model(path).tokenizer
    ids = tokenizer("hello world", add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["hello", "▁world"]
    for text in ("hello world", " hello  é\n\nworld", "漢字 <unused>", "<start_of_turn>held<end_of_turn>"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert tokenizer("h")["input_ids"][0] == 2
    assert tokenizer("<end_of_turn>", add_special_tokens=False)["input_ids"] == [5]


SCALING = RopeScaling(factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192)


def llama3_factors(head_dim: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """As llama.cpp's converter writes them."""
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (i / head_dim)
        if wavelength < scaling.original_max_position / scaling.high_freq_factor:
            factors.append(1.0)
        elif wavelength > scaling.original_max_position / scaling.low_freq_factor:
            factors.append(scaling.factor)
        else:
            smooth = (scaling.original_max_position / wavelength - 1) / 3
            factors.append(1 / ((1 - smooth) / scaling.factor + smooth))
    return np.array(factors)


def test_the_scaling_of_llama_3_is_found_from_its_factors(tmp_path):
    model = tiny_model(rope_theta=5e5, rope_scaling=SCALING, head_dim=64, num_layers=1)
    factors = llama3_factors(64, 5e5, SCALING)
    plain = replace(model.config, rope_scaling=None)
    np.testing.assert_allclose(rotary_frequencies(plain) / rotary_frequencies(model.config), factors, rtol=1e-5)
    assert load_model(write_gguf(model, tmp_path / "model.gguf", factors)).config.rope_scaling == SCALING
    with pytest.raises(ModelError, match="these are of no such model"):
        llama3_scaling(np.linspace(1, 9, 32), 64, 5e5, source="here")


def f16(content: bytes) -> float:
    return struct.unpack("<e", content)[0]


def scale_and_min(packed: bytes, j: int) -> tuple[int, int]:
    """ggml's get_scale_min_k4."""
    if j < 4:
        return packed[j] & 63, packed[j + 4] & 63
    return (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4), (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4)


def q4_k(block: bytes) -> list[float]:
    """ggml's dequantize_row_q4_K, number by number."""
    d, low, packed, quants = f16(block[:2]), f16(block[2:4]), block[4:16], block[16:]
    numbers = []
    for part in range(8):
        scale, minimum = scale_and_min(packed, part)
        for byte in quants[part // 2 * 32 : part // 2 * 32 + 32]:
            numbers.append(d * scale * (byte >> 4 if part % 2 else byte & 15) - low * minimum)
    return numbers


def q6_k(block: bytes) -> list[float]:
    """ggml's dequantize_row_q6_K, number by number."""
    low, high, scales, d = block[:128], block[128:192], struct.unpack("16b", block[192:208]), f16(block[208:])
    numbers = [0.0] * 256
    for half in range(2):
        for at in range(32):
            top = high[half * 32 + at]
            for part in range(4):
                byte = low[half * 64 + at + 32 * (part % 2)]
                quant = ((byte >> 4 if part >= 2 else byte & 15) | ((top >> 2 * part & 3) << 4)) - 32
                numbers[half * 128 + part * 32 + at] = d * scales[half * 8 + part * 2 + at // 16] * quant
    return numbers


@pytest.mark.parametrize(
    ("kind", "size", "places", "decode"), [(Kind.Q4_K, 144, (0, 2), q4_k), (Kind.Q6_K, 210, (208,), q6_k)]
)
def test_blocks_of_256_numbers_are_expanded_as_ggml_does(kind, size, places, decode, tmp_path):
    content = np.random.default_rng(0).integers(0, 256, (6, size), np.uint8)
    for place in places:
        content[:, place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    path = tmp_path / "blocks"
    path.write_bytes(b"ahead" + content.tobytes())
    tensor = GGUFTensor("w", path, (3, 512), kind, 5)
    got = np.concatenate([block for _, block in tensor.blocks()])
    expected = np.array([decode(row.tobytes()) for row in content]).reshape(3, 512)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Kind.F32, 0), (Kind.F16, 5e-4), (Kind.BF16, 4e-3), (Kind.Q8_0, 1 / 127), (Kind.Q4_0, 1 / 7), (Kind.Q4_1, 1 / 14)],
)
def test_tensors_of_each_type_are_expanded_block_by_block(kind, error, tmp_path):
    wanted = np.random.default_rng(1).uniform(-1, 1, (2500, 512)).astype(np.float32)
    path = tmp_path / "blocks"
    path.write_bytes(gguf.quants.quantize(wanted, kind).tobytes())
    blocks = list(GGUFTensor("w", path, wanted.shape, kind, 0).blocks())
    assert len(blocks) == 2
    assert [start for start, _ in blocks] == [0, len(blocks[0][1])]
    assert np.abs(np.concatenate([block for _, block in blocks]) - wanted).max() <= error


def test_a_type_that_cannot_be_expanded_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("w", np.zeros((1, 66), np.uint8), raw_dtype=Kind.IQ2_XXS)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="the tensor w is stored as IQ2_XXS, which cannot be expanded"):
        load_model(tmp_path / "model.gguf")


@pytest.mark.parametrize(("layers", "expected"), [(46, 4608 // 32), (42, 128)])
def test_gemmas_of_27b_divide_by_their_hidden_size_over_heads_as_llama_cpp_does(layers, expected):
    sizes = {"block_count": layers, "embedding_length": 4608, "feed_forward_length": 8, "context_length": 8192}
    heads = {"head_count": 32, "head_count_kv": 16, "key_length": 128, "sliding_window": 4096}
    own = {**sizes, **{f"attention.{key}": value for key, value in heads.items()}}
    own["attention.layer_norm_rms_epsilon"] = 1e-6
    metadata = {f"gemma2.{key}": value for key, value in own.items()}
    metadata |= {"general.architecture": "gemma2", "tokenizer.ggml.tokens": ["a"]}
    config = gguf_config(GGUFFile(Path("here"), metadata, {}), "gemma2", [])
    assert config.query_pre_attn_scalar == expected
    assert config.windows[:3] == (4096, None, 4096)
