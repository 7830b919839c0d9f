"""The written-out gradient of packed attention, against the plain one in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.models.attention import attend, segment_mask
from agentlab.training import attention

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_value_and_gradient_equal_those_of_plain_attention(monkeypatch, kv_heads):
    monkeypatch.setattr(attention, "BLOCK", 4)
    rng = np.random.default_rng(kv_heads)
    segments = jnp.asarray([[0, 0, 0, 1, 1, 2, 2, 2, -1, -1], [1, 1, 1, 1, 2, 2, 3, 3, 3, 3]])
    positions = jnp.asarray([[0, 1, 2, 3, 4, 3, 4, 5, 0, 0], [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]])
    mask = segment_mask(segments, positions)
    with enable_x64(True):
        q = jnp.asarray(rng.normal(size=(2, 10, 4, 6)))
        k, v = (jnp.asarray(rng.normal(size=(2, 10, kv_heads, 6))) for _ in range(2))
        outer = jnp.asarray(rng.normal(size=q.shape))

        def of(function):
            return jax.jit(jax.value_and_grad(lambda *x: jnp.sum(function(*x, mask, scale=0.4) * outer), (0, 1, 2)))

        value, gradients = of(attention.attend_packed)(q, k, v)
        expected, expected_gradients = of(attend)(q, k, v)
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        for ours, theirs in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
