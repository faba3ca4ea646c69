"""What the model's blocks are made of: products and tables whose values come later, the norm, rotation by position."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """No bias; the fp32 master weight is cast to the dtype of what comes in, so that gradients add up in fp32."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=False)

    def reset_parameters(self) -> None:
        pass  # init_weights gives all values

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype))


class Embedding(nn.Embedding):
    """A table without values until init_weights gives them: to draw on the meta device would import the compiler."""

    def reset_parameters(self) -> None:
        pass


def norm(x: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=eps)  # its sum of squares is fp32 whatever x is


def rotate(x: Tensor, cos: Tensor, sin: Tensor, still: int = 0) -> Tensor:
    """x (B, T, H, D) turned by its position, in fp32: channel i pairs with i + n/2, the channels after n stay.

    still: how many of the first heads stay as they are.
    """
    if still:
        return torch.cat([x[:, :, :still].float(), rotate(x[:, :, still:], cos, sin)], dim=2)
    a, b, rest = x.split([cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest.float()], dim=-1)
