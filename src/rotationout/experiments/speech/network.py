"""The network of Table 4, a bidirectional LSTM that scores labels at every frame, and the CTC loss.

The paper has four layers, 40 inputs and 512 hidden units, and neither stacks frames nor skips any. It prints 137
outputs, though its labels are characters; here there are as many as the alphabet needs. The paper does not say where
the noise acts: here, on the output of every layer, the last one included, and never on the input.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...nn import NoisyLSTM
from .stepped import both_ways

__all__ = ["Listener", "ctc_loss"]

CUDNN_LABELS = 255
"""The longest transcript, in labels, that cuDNN's CTC loss accepts."""


class Listener(nn.Module):
    """A bidirectional LSTM and a linear layer on padded utterances: (T, N, inputs) to (T, N, outputs), not normalised.

    It equals a bidirectional `torch.nn.LSTM` on packed utterances: the output at a frame does not depend on the
    padding. Each direction is a module of its own; the backward one reads every utterance from its last frame. So
    padding always comes last, where no state depends on it, and shapes depend on the padded length alone: one CUDA
    graph serves all batches of that length.

    Args:
        inputs: features of a frame.
        hidden: hidden units of each direction.
        layers: number of layers.
        outputs: number of labels, the blank included.
        noise: makes the noise on the output of a layer; called once for each.
        weight_drop: drop probability of the recurrent weights.
        variational: drop whole rows of the recurrent weights.
        stepped: run the LSTMs frame by frame instead of in cuDNN, see `both_ways`; the result is the same.

    >>> from rotationout import noise
    >>> network = Listener(40, 8, 2, 29, noise=lambda: noise("rotation-sequence", 0.2))
    >>> network(torch.randn(11, 2, 40), torch.tensor([11, 7])).shape
    torch.Size([11, 2, 29])
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int,
        outputs: int,
        *,
        noise: Callable[[], nn.Module] = nn.Identity,
        weight_drop: float = 0.0,
        variational: bool = False,
        stepped: bool = False,
    ) -> None:
        super().__init__()
        sizes = [inputs, *[2 * hidden] * (layers - 1)]

        def direction() -> nn.ModuleList:
            layer = functools.partial(NoisyLSTM, weight_drop=weight_drop, variational=variational)
            return nn.ModuleList(layer(size, hidden) for size in sizes)

        self.stepped = stepped
        self.onwards, self.backwards = direction(), direction()
        self.noises = nn.ModuleList(noise() for _ in sizes)
        self.labels = nn.Linear(2 * hidden, outputs)
        for layer in (*self.onwards, *self.backwards):
            _begin(layer)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The score of every label at every frame; ``lengths`` has the number of frames of each utterance."""
        x = features
        order = _mirror(lengths, len(features))
        for onwards, backwards, noise in zip(self.onwards, self.backwards, self.noises, strict=True):
            if self.stepped:
                one, other = both_ways((onwards, backwards), (x, _turn(x, order)))
                x = noise(torch.cat((one, _turn(other, order)), -1))
            else:
                x = noise(torch.cat(_side_by_side(onwards, backwards, x, order), -1))
        scores: Tensor = self.labels(x)
        return scores


@torch.no_grad()
def _begin(layer: nn.Module) -> None:
    """Set initial weights with which signals reach the last layer and states last for a while.

    The recurrent weights of every gate are orthogonal (Saxe et al. 2014), those of the inputs Glorot's, and the forget
    gates start open (Jozefowicz et al. 2015). With torch's own initial weights the network outputs nothing but blanks
    for half of the paper's epochs on AN4, and for how long is random: this would hide the effect of the noises.
    """
    for name, parameter in layer.named_parameters():
        if "bias" in name:
            parameter.zero_()
            if "bias_ih" in name:
                parameter.chunk(4)[1].fill_(1.0)  # the forget gate of i, f, g, o
            continue
        for gate in parameter.chunk(4):
            (nn.init.orthogonal_ if "weight_hh" in name else nn.init.xavier_uniform_)(gate)


def _side_by_side(onwards: nn.Module, backwards: nn.Module, x: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of both directions of a layer; on a GPU on two streams at the same time, as neither fills it."""
    if not x.is_cuda:
        return onwards(x)[0], _turn(backwards(_turn(x, order))[0], order)
    here, aside = torch.cuda.current_stream(x.device), _aside(x.device)
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        other = _turn(backwards(_turn(x, order))[0], order)
    one = onwards(x)[0]
    here.wait_stream(aside)
    for tensor, user in ((x, aside), (order, aside), (other, here)):
        tensor.record_stream(user)  # its memory must not be reused while the other stream may read it
    return one, other


@functools.lru_cache(maxsize=8)
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _mirror(lengths: Tensor, frames: int) -> Tensor:
    """For each frame of a flattened (T, N) the index of the frame that replaces it when utterances are reversed.

    Padding stays where it is.

    >>> _turn(torch.tensor([[1, 4], [2, 5], [3, 0]]), _mirror(torch.tensor([3, 2]), 3)).T.tolist()
    [[3, 2, 1], [5, 4, 0]]
    """
    time = torch.arange(frames, device=lengths.device).unsqueeze(1)
    partner = torch.where(time < lengths, lengths - 1 - time, time)
    return (partner * len(lengths) + torch.arange(len(lengths), device=lengths.device)).flatten()


def _turn(x: Tensor, order: Tensor) -> Tensor:
    return x.flatten(0, 1).index_select(0, order).view_as(x)


def ctc_loss(scores: Tensor, lengths: Tensor, labels: Tensor, sizes: Tensor) -> Tensor:
    """The mean over utterances of CTC's loss per character (Graves et al. 2006), as `torch.nn.functional.ctc_loss`.

    On a GPU cuDNN computes it, unless a transcript is too long. It is called here with lengths that stay on the device,
    so that the host need not wait and a CUDA graph can be captured. torch's own function would read the lengths on the
    host before it calls cuDNN or, while capturing, refuse utterances of 256 frames and more.

    Args:
        scores: (T, N, labels), not normalised; label 0 is the blank.
        lengths: number of frames of each utterance, (N,).
        labels: the transcripts, (N, S), padded.
        sizes: number of labels of each transcript, (N,).
    """
    if not scores.is_cuda or labels.size(1) > CUDNN_LABELS:
        return F.ctc_loss(scores.float().log_softmax(-1), labels, lengths, sizes)
    outside = torch.arange(len(scores), device=scores.device).unsqueeze(1) >= lengths
    heard = scores.float().masked_fill(outside.unsqueeze(2), 0)  # no gradient of padding, whatever cuDNN returns there
    integers = [tensor.to(torch.int32) for tensor in (_joined(labels, sizes), lengths, sizes)]
    losses, _ = torch.ops.aten._cudnn_ctc_loss.Tensor(heard.log_softmax(-1), *integers, 0, True, False)
    mean: Tensor = (losses / sizes).mean()
    return mean


def _joined(labels: Tensor, sizes: Tensor) -> Tensor:
    """Concatenate the transcripts without padding, as cuDNN needs them; the rest of the tensor is zero."""
    place = torch.arange(labels.size(1), device=labels.device)
    start = (sizes.cumsum(0) - sizes).unsqueeze(1)
    end = labels.numel()  # padding is scattered here, and cut off
    target = (start + place).masked_fill(place >= sizes.unsqueeze(1), end).flatten()
    return labels.new_zeros(end + 1).scatter_(0, target, labels.flatten())[:end]
