# SPDX-License-Identifier: Apache-2.0 - the same benchmarked work written the JAX way, whole steps under jit.
"""`build(name)` returns a function that does one step and returns its result. Needs jax and numpy only."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)


def build(name: str):
    works = {
        "adds": adds,
        "mlp": mlp,
        "gpt": gpt,
        "resnet": resnet,
        "token": token,
        "decode": decode,
    }
    return works[name]()


def normal(*shape, scale=0.02):
    return jnp.asarray(rng.standard_normal(shape, dtype=np.float32) * scale)


def adds():
    x, one = jnp.zeros((8, 8)), jnp.ones((8, 8))
    add = jax.jit(lambda a, b: a + b)

    def step():
        y = x
        for _ in range(1000):
            y = add(y, one)
        return y

    return step


def cross_entropy(logits, labels):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


def training(loss, update, state, x, y):
    """A jitted step that gives its state back in place of the old one."""

    @partial(jax.jit, donate_argnums=0)
    def jitted(state, x, y):
        value, gradients = jax.value_and_grad(loss)(state[0], x, y)
        return update(state, gradients), value

    def step():
        nonlocal state
        state, value = jitted(state, x, y)
        return value

    return step


def mlp():
    sizes = (64, 256, 256, 10)
    params = [(normal(a, b, scale=a**-0.5), jnp.zeros(b)) for a, b in pairwise(sizes)]

    def loss(params, x, y):
        for i, (w, b) in enumerate(params):
            x = x @ w + b
            if i < len(params) - 1:
                x = jax.nn.relu(x)
        return cross_entropy(x, y)

    def sgd(state, gradients):
        return (jax.tree.map(lambda p, g: p - 0.01 * g, state[0], gradients),)

    x, y = normal(32, 64, scale=1), jnp.asarray(rng.integers(0, 10, 32))
    return training(loss, sgd, (params,), x, y)


def layer_norm(x, weight, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def dense(a, b):
    return {"w": normal(a, b), "b": jnp.zeros(b)}


def linear(x, p):
    return x @ p["w"] + p["b"]


def gpt_parameters(vocabulary=1024, length=128, width=256, layers=4):
    def norm():
        return (jnp.ones(width), jnp.zeros(width))

    return {
        "tokens": normal(vocabulary, width),
        "places": normal(length, width),
        "blocks": [
            {
                "norm1": norm(),
                "norm2": norm(),
                "qkv": dense(width, 3 * width),
                "out": dense(width, width),
                "up": dense(width, 4 * width),
                "down": dense(4 * width, width),
            }
            for _ in range(layers)
        ],
        "norm": norm(),
        "head": normal(width, vocabulary),
    }


def gpt():
    vocabulary, length, width, heads = 1024, 128, 256, 4
    params = gpt_parameters(vocabulary, length, width)
    causal = jnp.tril(jnp.ones((length, length), bool))

    def loss(params, ids, labels):
        x = params["tokens"][ids] + params["places"]
        for p in params["blocks"]:
            qkv = linear(layer_norm(x, *p["norm1"]), p["qkv"])
            q, k, v = jnp.moveaxis(qkv.reshape(*x.shape[:2], 3, heads, width // heads), 2, 0)
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
            weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
            x = x + linear(mixed, p["out"])
            hidden = linear(layer_norm(x, *p["norm2"]), p["up"])
            x = x + linear(jax.nn.gelu(hidden, approximate=False), p["down"])
        return cross_entropy(layer_norm(x, *params["norm"]) @ params["head"], labels)

    def adamw(state, gradients, lr=3e-4, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
        params, m, v, t = state
        t = t + 1
        m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, gradients)
        v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, v, gradients)

        def move(p, m, v):
            scaled = (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + eps)
            return p * (1 - lr * decay) - lr * scaled

        return jax.tree.map(move, params, m, v), m, v, t

    zeros = jax.tree.map(jnp.zeros_like, params)
    state = (params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros(()))
    ids = jnp.asarray(rng.integers(0, vocabulary, (4, length + 1)))
    return training(loss, adamw, state, ids[:, :-1], ids[:, 1:])


class Decoding:
    """One token a call, from `forward(params, cache, token, place)`; the host reads each."""

    def start(self):
        self.jitted = jax.jit(self.forward, donate_argnums=1)
        self.begin()

    def begin(self):
        self.token, self.place = jnp.zeros((), jnp.int32), self.PROMPT

    def __call__(self):
        self.token, self.cache = self.jitted(self.params, self.cache, self.token, self.place)
        self.place += 1
        int(self.token)
        return self.token


class token(Decoding):
    """One token of greedy decoding with the GPT and a static key-value cache, read by the host."""

    LENGTH, PROMPT, HEADS, WIDTH = 128, 16, 4, 256

    def __init__(self):
        self.params = gpt_parameters(length=self.LENGTH, width=self.WIDTH)
        shape = (self.HEADS, self.LENGTH, self.WIDTH // self.HEADS)
        self.cache = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in self.params["blocks"]]
        self.start()

    def forward(self, params, cache, token, place):
        seen = jnp.arange(self.LENGTH) <= place
        x, new = params["tokens"][token] + params["places"][place], []
        for p, (keys, values) in zip(params["blocks"], cache, strict=True):
            qkv = linear(layer_norm(x, *p["norm1"]), p["qkv"])
            q, k, v = qkv.reshape(3, self.HEADS, self.WIDTH // self.HEADS)
            keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, place, 0))
            values = jax.lax.dynamic_update_slice(values, v[:, None], (0, place, 0))
            new.append((keys, values))
            scores = jnp.einsum("hd,htd->ht", q, keys) * (self.WIDTH // self.HEADS) ** -0.5
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
            x = x + linear(jnp.einsum("ht,htd->hd", weights, values).reshape(-1), p["out"])
            hidden = linear(layer_norm(x, *p["norm2"]), p["up"])
            x = x + linear(jax.nn.gelu(hidden, approximate=False), p["down"])
        logits = layer_norm(x, *params["norm"]) @ params["head"]
        return logits.argmax(-1).astype(jnp.int32), new


def resnet():
    def conv(params, x, stride):
        w, scale, shift = params
        padding = [((w.shape[0] - 1) // 2,) * 2] * 2
        x = jax.lax.conv_general_dilated(
            x, w, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return x * scale + shift  # batch norm of a network in evaluation

    def make(size, inner, outer):
        w = normal(size, size, inner, outer, scale=(size * size * inner) ** -0.5)
        return w, jnp.ones(outer), jnp.zeros(outer)

    stem, blocks, inner = make(7, 3, 64), [], 64
    plan = [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]
    for outer, stride in plan:
        short = make(1, inner, outer) if stride != 1 or inner != outer else None
        blocks.append((make(3, inner, outer), make(3, outer, outer), short))
        inner = outer
    head = normal(512, 1000)

    @jax.jit
    def forward(params, x):
        stem, blocks, head = params
        x = jax.nn.relu(conv(stem, x, 2))
        around = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
        for (first, second, short), (_, stride) in zip(blocks, plan, strict=True):
            y = conv(second, jax.nn.relu(conv(first, x, stride)), 1)
            x = jax.nn.relu(y + (x if short is None else conv(short, x, stride)))
        return x.mean((1, 2)) @ head

    x = normal(4, 64, 64, 3, scale=1)
    params = (stem, blocks, head)
    return lambda: forward(params, x)


class decode(Decoding):  # a class because each round starts again at the same position
    """SmolLM2-135M's shapes with random weights; the time does not depend on the values."""

    PROMPT, LENGTH = 32, 256
    LAYERS, WIDTH, INNER, HEADS, KV, HEAD, VOCABULARY = 30, 576, 1536, 9, 3, 64, 49152

    def __init__(self):
        w, kv = self.WIDTH, self.KV * self.HEAD
        blocks = [
            {
                "norm1": jnp.ones(w),
                "norm2": jnp.ones(w),
                "q": normal(w, w),
                "k": normal(w, kv),
                "v": normal(w, kv),
                "o": normal(w, w),
                "gate": normal(w, self.INNER),
                "up": normal(w, self.INNER),
                "down": normal(self.INNER, w),
            }
            for _ in range(self.LAYERS)
        ]
        self.params = {"tokens": normal(self.VOCABULARY, w), "norm": jnp.ones(w), "blocks": blocks}
        shape = (self.KV, self.LENGTH, self.HEAD)
        self.cache = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in range(self.LAYERS)]
        self.start()

    def forward(self, params, cache, token, place):
        angles = place * 1e5 ** (-jnp.arange(0, self.HEAD, 2) / self.HEAD)
        cos, sin = (jnp.tile(f(angles), 2) for f in (jnp.cos, jnp.sin))
        seen = jnp.arange(self.LENGTH) <= place

        def rms(x, weight):
            return x * jax.lax.rsqrt((x * x).mean() + 1e-5) * weight

        def rotate(x):
            a, b = jnp.split(x, 2, -1)
            return x * cos + jnp.concatenate([-b, a], -1) * sin

        x, new = params["tokens"][token], []
        for p, (keys, values) in zip(params["blocks"], cache, strict=True):
            h = rms(x, p["norm1"])
            q = rotate((h @ p["q"]).reshape(self.KV, self.HEADS // self.KV, self.HEAD))
            k = rotate((h @ p["k"]).reshape(self.KV, self.HEAD))
            v = (h @ p["v"]).reshape(self.KV, self.HEAD)
            keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, place, 0))
            values = jax.lax.dynamic_update_slice(values, v[:, None], (0, place, 0))
            new.append((keys, values))
            scores = jnp.einsum("ghd,gtd->ght", q, keys) * self.HEAD**-0.5
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
            x = x + jnp.einsum("ght,gtd->ghd", weights, values).reshape(-1) @ p["o"]
            h = rms(x, p["norm2"])
            x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        logits = params["tokens"] @ rms(x, params["norm"])
        return logits.argmax(-1).astype(jnp.int32), new
