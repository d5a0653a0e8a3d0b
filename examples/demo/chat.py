# SPDX-License-Identifier: Apache-2.0 - greedy chat with SmolLM2 on the device, compared with the CPU.
"""`main()` answers one question on the device and on the CPU and compares the tokens one by one;
`talk()` answers whatever you type.
"""

import time
from dataclasses import dataclass

import torch
from transformers import StaticCache, TextStreamer
from transformers.utils import logging

from examples.demo import smollm2

QUESTION = "Why is the sky blue?"
PROMPT_ROOM = 192  # tokens of a conversation that are kept


class TimedStreamer(TextStreamer):
    """Prints the text as it comes and notes when each token came."""

    def __init__(self, tokenizer):
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.times = []

    def put(self, value):
        if not self.next_tokens_are_prompt:
            self.times.append(time.perf_counter())
        super().put(value)


@dataclass
class Answer:
    """One answer: its tokens and how fast they came."""

    tokens: list[int]
    first: float  # seconds to the first token
    step: float  # seconds a token after it, median


def prompt_ids(tokenizer, turns):
    """The turns of a conversation in the model's own chat template, as token numbers on the CPU."""
    return tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )


def answer(model, tokenizer, turns, count: int) -> Answer:
    """Greedy decoding with Transformers' own generate()."""
    inputs = prompt_ids(tokenizer, turns).to(model.device)
    length = inputs["input_ids"].shape[1]
    options = {}
    if model.device.type != "cpu":
        # One length for all steps suits a compiler: a cache that grows means new programs for
        # every token.
        options["past_key_values"] = StaticCache(model.config, max_cache_len=PROMPT_ROOM + count)
        options["disable_compile"] = True  # plain eager execution is what is shown here
    streamer = TimedStreamer(tokenizer)
    start = time.perf_counter()
    with torch.no_grad():
        ids = model.generate(
            **inputs, max_new_tokens=count, do_sample=False, streamer=streamer, **options
        )
    gaps = torch.tensor(streamer.times).diff()
    step = gaps.median().item() if len(gaps) else float("nan")
    return Answer(ids[0, length:].tolist(), streamer.times[0] - start, step)


def main(device: str, count: int, question: str = QUESTION) -> tuple[list[str], float]:
    """Runs the part; returns the promises that were missed, and the seconds spent on the device."""
    logging.set_verbosity_error()
    turns = [{"role": "user", "content": question}]
    answers = {}
    smollm2.checkpoint()  # converting, the first time, is no part of what is timed
    seconds = {}
    for place in (device, "cpu"):
        start = time.perf_counter()
        model, tokenizer = smollm2.load(place)
        print(f"\nSmolLM2-135M, float32, on {model.device}. Question: {question}\n")
        answers[place] = answer(model, tokenizer, turns, count)
        seconds[place] = time.perf_counter() - start
        del model
        got = answers[place]
        print(
            f"\n  {place}: {len(got.tokens)} tokens; first after {got.first:.2f} s, then "
            f"{1 / got.step:.1f} tokens/s (median step {got.step * 1e3:.1f} ms)"
        )
    missed = compare(tokenizer, answers[device].tokens, answers["cpu"].tokens, device)
    return missed, seconds[device]


def compare(tokenizer, got: list[int], wanted: list[int], device: str) -> list[str]:
    """Says whether the tokens are the same, and if not, from where they differ."""
    if got == wanted:
        print(f"  All {len(got)} tokens from {device} and cpu are the same.")
        return []
    at = next(
        (i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b),
        min(len(got), len(wanted)),
    )
    return [
        f"the text on {device} differs from the CPU's at token {at + 1}: "
        f"{tokenizer.decode(got[at : at + 8])!r}, "
        f"expected {tokenizer.decode(wanted[at : at + 8])!r}"
    ]


def talk(device: str, count: int) -> None:
    """A conversation with whoever sits at the keyboard; an empty line ends it."""
    logging.set_verbosity_error()
    model, tokenizer = smollm2.load(device)
    print(f"SmolLM2-135M on {model.device}. It is small and often wrong. An empty line ends.")
    turns = []
    while True:
        try:
            line = input("\nyou> ").strip()
        except EOFError:
            line = ""
        if not line:
            return
        turns.append({"role": "user", "content": line})
        while len(turns) > 1 and prompt_ids(tokenizer, turns)["input_ids"].shape[1] > PROMPT_ROOM:
            del turns[:2]  # forget the oldest question and its answer
        if prompt_ids(tokenizer, turns)["input_ids"].shape[1] > PROMPT_ROOM:
            print(f"That is too long: at most {PROMPT_ROOM} tokens fit. Ask something shorter.")
            turns.pop()
            continue
        got = answer(model, tokenizer, turns, count)
        turns.append(
            {"role": "assistant", "content": tokenizer.decode(got.tokens, skip_special_tokens=True)}
        )
        print(f"[{1 / got.step:.1f} tokens/s]" if len(got.tokens) > 1 else "")
