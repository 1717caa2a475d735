"""A ResNet of timm with the paper's placement: rotations before every convolution of the last two stages.

python examples/timm_resnet.py   (random weights; create_model(..., pretrained=True) where they can be downloaded)
"""

import timm
import torch
from sklearn.datasets import load_digits
from torch import nn

import rotationout as ro


def main(epochs: int = 3, batch_size: int = 64, rows: int = 1200, name: str = "resnet18") -> float:
    """Train on handwritten digits; the accuracy on held-out ones."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device)[:, None] / 16
    images = nn.functional.interpolate(images, size=32, mode="bilinear")
    labels = torch.tensor(digits.target, device=device)

    # Dropout before the classifier is an argument of timm's ResNets; what is a module, swap() would replace.
    model = timm.create_model(name, num_classes=10, in_chans=1, drop_block_rate=0.1).to(device)
    report = ro.swap(model)  # timm's DropBlock becomes a rotation inside blocks
    report += ro.insert_in_stages(model, ro.RotationOut2d(0.2, center=None), last=2)
    report += ro.insert(model, ro.RotationOut(0.2), before="fc")
    print(report)

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = ro.Schedule.ramp(report.noises, steps=epochs * rows // batch_size // 2)
    for _ in range(epochs):
        model.train()
        for chosen in torch.randperm(rows, device=device).split(batch_size):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in images[1200:].split(batch_size)])
    accuracy = (found == labels[1200:]).float().mean().item()
    print(f"accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
