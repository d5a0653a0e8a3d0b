# SPDX-License-Identifier: Apache-2.0 - trains a convolutional network on handwritten digits.
"""1,797 handwritten digits (8x8 pixels, shipped with scikit-learn) and a stock PyTorch network,
loader and optimizer.

The same run is made twice, from the same initial weights and with the same order of batches: once
on the device, once on the CPU. The two loss curves land in one picture.
"""

import copy
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

WANTED_ACCURACY = 0.97
EPOCHS = 12
BATCH = 64
SEED = 2026


@dataclass
class Run:
    """What one training run left behind."""

    device: str
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    seconds: float = 0.0


def data():
    """Training and test set: 80 % and 20 % of the digits, pixels scaled to 0..1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[:, None]
    parts = train_test_split(
        images, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return TensorDataset(train_images, train_labels.long()), TensorDataset(
        test_images, test_labels.long()
    )


def network() -> nn.Module:
    """Two convolutions with batch norm, a pool, two linear layers: 135,000 weights."""
    # No bias before a batch norm, which takes it away again: its gradient is nothing but rounding,
    # and AdamW would make full steps of that.
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 112),
        nn.ReLU(),
        nn.Linear(112, 10),
    )


def train(initial: nn.Module, device: str, train_set, test_set) -> Run:
    """One ordinary PyTorch training run; everything that differs between the two is the device."""
    run = Run(device)
    model = copy.deepcopy(initial).to(device)
    # The order of the batches comes from a CPU generator, so it is the same wherever the model is.
    loader = DataLoader(
        train_set,
        BATCH,
        shuffle=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(SEED),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(loader))
    loss_function = nn.CrossEntropyLoss()

    start = time.perf_counter()
    # disable=None: a bar on a terminal, none in a log file; the lines per epoch appear in both.
    with tqdm(
        total=EPOCHS * len(loader), desc=f"  {device}", unit="step", disable=None, leave=False
    ) as bar:
        for epoch in range(EPOCHS):
            model.train()
            for images, labels in loader:
                loss = loss_function(model(images.to(device)), labels.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                run.losses.append(
                    loss.detach()
                )  # read later: a read here would make the host wait at each step
                bar.update()
            if epoch % 3 == 2:
                run.accuracy = accuracy(model, device, test_set)
                tqdm.write(
                    f"  {device}: epoch {epoch + 1:2d} of {EPOCHS}   "
                    f"loss {run.losses[-1].item():.4f}   test accuracy {run.accuracy:.2%}   "
                    f"{time.perf_counter() - start:.1f} s"
                )
    run.losses = torch.stack(run.losses).tolist()
    run.seconds = time.perf_counter() - start
    return run


@torch.no_grad()
def accuracy(model: nn.Module, device: str, test_set) -> float:
    """The share of the test set that the model gets right."""
    model.eval()
    images, labels = test_set.tensors
    right = model(images.to(device)).argmax(1) == labels.to(device)
    return right.float().mean().item()


def draw(runs: list[Run], path: Path) -> None:
    """Both loss curves, and below them how far they are apart."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(8, 6), sharex=True, height_ratios=[3, 1], constrained_layout=True
    )
    for run, style in zip(
        runs, ({"lw": 2.5, "alpha": 0.6}, {"lw": 1, "ls": "--", "color": "black"}), strict=False
    ):
        above.plot(run.losses, label=f"{run.device}: test accuracy {run.accuracy:.2%}", **style)
    above.set_yscale("log")
    above.set_ylabel("training loss")
    above.set_title("Handwritten digits: the same training run on two devices")
    above.legend()
    gaps = [abs(a - b) for a, b in zip(runs[0].losses, runs[1].losses, strict=True)]
    below.plot(gaps, lw=1, color="tab:red")
    below.set_ylabel("|difference|")
    below.set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(device: str, picture: Path) -> tuple[list[str], float]:
    """Runs the part; returns the promises that were missed, and the seconds spent on the device."""
    train_set, test_set = data()
    torch.manual_seed(SEED)
    initial = network()  # on the CPU: both runs start from the same weights
    print(
        f"{len(train_set)} digits to learn from, {len(test_set)} to be tested on; "
        f"{EPOCHS} epochs in batches of {BATCH}."
    )
    runs = [train(initial, place, train_set, test_set) for place in (device, "cpu")]
    draw(runs, picture)
    for run in runs:
        print(f"  {run.device:4s} {run.accuracy:.2%} of the test digits right, {run.seconds:.1f} s")
    gap = max(abs(a - b) for a, b in zip(runs[0].losses, runs[1].losses, strict=True))
    print(f"  Largest difference between the two loss curves: {gap:.1e}. Picture: {picture}")
    missed = []
    if runs[0].accuracy < WANTED_ACCURACY:
        missed.append(
            f"test accuracy on {device} is {runs[0].accuracy:.2%}; "
            f"at least {WANTED_ACCURACY:.0%} was promised"
        )
    return missed, runs[0].seconds
