"""A ResNet of timm with the paper's placement: rotations before every convolution of the last two stages.

python examples/timm_resnet.py   (random weights; use pretrained=True if you can download weights)
Needs: pip install -e '.[demo,models]'
"""

from typing import Any

import timm
import torch
from sklearn.datasets import load_digits
from torch import nn

import rotationout as ro


def main(name: str = "resnet18", epochs: int = 3, batch_size: int = 32, **options: Any) -> float:
    """Train on handwritten digits, and return the accuracy on held-out ones."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    images = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16
    images = nn.functional.interpolate(images, size=32, mode="bilinear").to(device)
    labels = torch.tensor(digits.target)[order].to(device)
    rows = 1200  # the rest is held out

    model = timm.create_model(name, num_classes=10, in_chans=1, drop_block_rate=0.1, **options).to(device)
    report = ro.swap(model)  # timm's DropBlock becomes a rotation inside blocks
    report += ro.insert_in_stages(model, ro.RotationOut2d(0.2), last=2)
    report += ro.insert(model, ro.RotationOut(0.2), before="fc")
    print(report)

    steps = epochs * -(-rows // batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    schedule = ro.Schedule.ramp(model, steps=steps // 2)
    for _ in range(epochs):
        model.train()
        for chosen in torch.randperm(rows, device=device).split(batch_size):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
            schedule.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[rows:]).argmax(1) == labels[rows:]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
