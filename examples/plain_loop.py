"""A plain training loop: insert noise into a network, ramp its strength up, and predict with an uncertainty.

python examples/plain_loop.py   (needs: pip install -e '.[demo]')
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import rotationout as ro


def main(epochs: int = 20, batch_size: int = 64, ramp: int = 200) -> float:
    """Train on handwritten digits, and return the accuracy on held-out ones."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[:1200], order[1200:]

    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    # One line for each place: before the second convolution, and before the last linear layer.
    print(ro.insert(model, ro.RotationOut2d(0.2), before=nn.Conv2d, within="1"))
    print(ro.insert(model, ro.RotationOut(0.2), before="2.3"))
    schedule = ro.Schedule.ramp(model, steps=ramp)

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        model.train()
        for rows in train[torch.randperm(len(train))].split(batch_size):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    mean, std = ro.predict_samples(model, images[test], 20, output=lambda logits: logits.softmax(1))
    sure = std.gather(1, mean.argmax(1, keepdim=True)).mean().item()
    print(f"accuracy {accuracy:.3f}, mean spread of the winning class over 20 samples {sure:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
